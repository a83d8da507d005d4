"""The same fake model behind an engine in this process and behind one in its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from ninfer_core import Engine, RemoteEngine
from ninfer_core.contract.engine import EngineLike, EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.testing.fake_law import EMPTY_STATE, execute, next_token
from ninfer_core.testing.fake_remote import FakeStart, fake_plan, open_locally

PROMPT = (7, 9, 11, 13, 8, 6, 5, 12, 10, 14)
KINDS = ("in_process", "remote")
Opener = Callable[..., EngineLike]


def open_kind(kind: str, start: FakeStart, **fields: object) -> Engine | RemoteEngine:
    options = EngineOptions(max_concurrency=start.max_concurrency, **fields)
    if kind == "remote":
        return RemoteEngine(fake_plan(start), options)
    return Engine(partial(open_locally, start), options)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def engine(kind: str) -> Iterator[EngineLike]:
    """One engine for many tests: three at a time, four may wait."""
    start = FakeStart(max_context=4096, max_concurrency=3, round_seconds=0.0005)
    with open_kind(kind, start, max_pending=4) as opened:
        yield opened


@pytest.fixture
def opener(kind: str) -> Iterator[Opener]:
    """Open engines of the kind for one test; they are closed with it."""
    with ExitStack() as owner:
        yield lambda start, **fields: owner.enter_context(open_kind(kind, start, **fields))


@pytest.fixture
def remote() -> Iterator[Callable[..., RemoteEngine]]:
    """Open remote engines for one test."""
    with ExitStack() as owner:
        yield lambda start, **fields: owner.enter_context(open_kind("remote", start, **fields))


@pytest.fixture
def ask() -> Callable[..., tuple[PromptInput, GenerationOptions]]:
    """A request whose answer the law tells: ``ask(count, seed=…)``."""

    def make(count: int | None = 20, *, seed: int = 1, ids=PROMPT, **rest):
        sampling = SamplingParams(seed=seed)
        options = GenerationOptions(
            sampling=sampling, max_new_tokens=count, ignore_eos=True, **rest
        )
        return PromptInput(token_ids=ids), options

    return make


@pytest.fixture
def law() -> Callable[..., tuple[int, ...]]:
    """The answers themselves, past every stop token."""

    def tell(count: int = 20, *, seed: int = 1, ids=PROMPT, vocab: int = 64) -> tuple[int, ...]:
        state, tokens = execute(EMPTY_STATE, ids), []
        for _ in range(count):
            tokens.append(next_token(state, seed, vocab))
            state = execute(state, tokens[-1:])
        return tuple(tokens)

    return tell


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition holds; fail after ten seconds."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "the condition never held"
            time.sleep(0.005)

    return wait
