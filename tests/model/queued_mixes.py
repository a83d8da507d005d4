"""Random mixes of requests, and engines over each kind of units to run them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ninfer_core.contract.cache import CachePolicy
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.errors import EngineFailure, RequestError
from ninfer_core.contract.frontend import ColumnState, OutputPreview, OutputSpan
from ninfer_core.contract.instance import Budget
from ninfer_core.contract.requests import GenerationOptions, PromptInput, ResponseFormat
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.device.cpu import open_device
from ninfer_core.engine import Engine
from ninfer_core.engine.opened import OpenedInstance
from ninfer_core.engine.policies import OffPolicy
from ninfer_core.testing.fake_frontend import FakeFrontend, FakeGrammar, FakeSession
from ninfer_qwen3_5.build import Qwen35Instance
from ninfer_qwen3_5.program.assemble import generation_program
from tests.model.late_device import LateDevice

WAIT = 120.0
VOCAB = 320
CHUNK = 32


@dataclass(frozen=True, slots=True)
class EveryFourth(FakeGrammar):
    """Allows the tokens that leave ``rest`` when divided by four, until ``dead_after`` tokens."""

    rest: int = 0


class MaskedSession(FakeSession):
    """Fails the engine when a token comes that its grammar forbids."""

    def fill(self, drafts: Sequence[int], out: Any) -> tuple[ColumnState, ...]:
        states = super().fill(drafts, out)
        if isinstance(self._grammar, EveryFourth):
            for column, state in enumerate(states):
                if state is ColumnState.READY:
                    out[column] = 0x11111111 << self._grammar.rest
        return states

    def preview(self, span: OutputSpan) -> OutputPreview:
        grammar = self._grammar
        if isinstance(grammar, EveryFourth) and not span.control:
            wrong = [token for token in span.token_ids if token % 4 != grammar.rest]
            if wrong:
                raise EngineFailure(f"{wrong} came under a mask of {grammar.rest}")
        return super().preview(span)


class MaskedFrontend(FakeFrontend):
    """Grammars are ``rest:N`` or ``rest:N:dead_after``."""

    def compile(self, source: Any) -> EveryFourth:
        rest, *dead = source.text.split(":")
        return EveryFourth(int(dead[0]) if dead else None, rest=int(rest))

    def open_output(self, prepared: Any, options: Any, compiled: Any) -> MaskedSession:
        return MaskedSession(options, compiled, self.faults)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request, and when it is cancelled: seconds after all were submitted, None for never."""

    prompt: PromptInput
    options: GenerationOptions
    cancel_after: float | None = None
    delay: float = 0.0


def random_mix(random_: random.Random, context: int, most: int) -> list[Wanted]:
    """Up to ``most`` requests."""
    return [_wanted(random_, context) for _ in range(random_.randint(1, most))]


def _wanted(r: random.Random, context: int) -> Wanted:
    length = min(r.choice([1, 2, 5, 31, 32, 33, 63, 64, 65, 96, r.randint(1, 100)]), context)
    kind = r.random()
    grammar = ResponseFormat()
    if kind < 0.3:
        dead = f":{r.randint(1, 12)}" if r.random() < 0.2 else ""
        grammar = ResponseFormat(kind="grammar", value=f"{r.randint(0, 3)}{dead}")
    tokens = r.choice(
        [0, 1, 2, 3, r.randint(4, 30), r.randint(20, 90), None if context < 140 else 9]
    )
    options = GenerationOptions(
        sampling=_sampling(r),
        max_new_tokens=tokens,
        min_tokens=min(r.choice([0, 0, 4]), context - length if tokens is None else tokens),
        ignore_eos=r.random() < 0.5,
        stop=(r.choice("abcdefgh") + r.choice("ijkl"),) if r.random() < 0.3 else (),
        stop_token_ids=tuple(r.sample(range(3, VOCAB), 20)) if r.random() < 0.3 else (),
        logprobs=r.choice([None, None, 0, 3]),
        prompt_logprobs=r.choice([None, None, None, 0, 2]),
        thinking_budget=r.randint(1, 12) if r.random() < 0.2 else None,
    )
    prompt = PromptInput(
        token_ids=[r.randrange(3, VOCAB) for _ in range(length)], response_format=grammar
    )
    return Wanted(
        prompt,
        options,
        cancel_after=r.random() * 0.1 if r.random() < 0.15 else None,
        delay=r.choice([0.0, 0.0, 0.0, 0.004, 0.02]),
    )


def _sampling(r: random.Random) -> SamplingParams:
    if r.random() < 0.3:
        return SamplingParams(temperature=0.0, seed=r.randrange(1 << 64))
    biased = {r.randrange(VOCAB): r.uniform(-100, 100) for _ in range(r.choice([0, 0, 3, 300]))}
    return SamplingParams(
        temperature=r.choice([0.0, 0.4, 1.0, 3.0]),
        top_k=r.choice([0, 1, 5, 40, 1000]),
        top_p=r.choice([1.0, 0.9, 0.3, 0.0]),
        min_p=r.choice([0.0, 0.05, 1.0]),
        presence_penalty=r.choice([0.0, 0.0, 1.5, -2.0]),
        frequency_penalty=r.choice([0.0, 0.0, 0.7, -0.5]),
        repetition_penalty=r.choice([1.0, 1.0, 1.3, 0.5]),
        logit_bias=biased,
        seed=r.choice([0, 1, (1 << 64) - 1, 1 << 63, r.randrange(1 << 64)]),
    )


@contextmanager
def engine_over(
    model: Any,
    units: str,
    policy: CachePolicy | None = None,
    drafting: Any = None,
    drops_allowed: bool = False,
    **sizes: Any,
) -> Iterator[tuple[Engine, Any]]:
    """``units``: eager, queued, or late for queued ones on a late device. ``policy``: of the cache,
    off without one."""
    device = LateDevice() if units == "late" else open_device()
    budget = Budget(**{"prefill_chunk": CHUNK, **sizes})
    programs: list[Any] = []

    def factory() -> OpenedInstance:
        held = None if units == "eager" else ExitStack()
        if isinstance(device, LateDevice):
            assert held is not None
            held.enter_context(device.mode)
        program, memory = generation_program(model, budget, device, held=held, drafting=drafting)
        if isinstance(device, LateDevice):
            device.make_late(program)
        programs.append(program)
        return OpenedInstance(
            instance=Qwen35Instance(
                "mix", MaskedFrontend(budget.max_context, VOCAB), program, memory
            ),
            architecture="Qwen3_5ForCausalLM",
            source="mix",
            devices=(device.name,),
            max_context=budget.max_context,
            warm_up=False,
            cache_policy=policy or OffPolicy(),
        )

    options = EngineOptions(
        max_concurrency=budget.max_concurrency, prefill_chunk=budget.prefill_chunk
    )
    with Engine(factory, options) as engine:
        yield engine, programs[0]
        assert drops_allowed or not engine.stats().cache_drops


Outcome = tuple[Any, ...]


def run_mix(engine: Engine, mix: Sequence[Wanted], *, spread: bool) -> list[Outcome]:
    """What came of each request. ``spread`` keeps to the delays and cancels."""
    handles = []
    for wanted in mix:
        if spread and wanted.delay:
            time.sleep(wanted.delay)
        handles.append(engine.submit(wanted.prompt, wanted.options))
    if spread:
        _cancel(mix, handles)
    return [_outcome(handle) for handle in handles]


def _cancel(mix: Sequence[Wanted], handles: Sequence[Any]) -> None:
    began = time.monotonic()
    doomed = [pair for pair in zip(mix, handles, strict=True) if pair[0].cancel_after is not None]
    for wanted, handle in sorted(doomed, key=lambda pair: pair[0].cancel_after or 0.0):
        time.sleep(max(0.0, began + (wanted.cancel_after or 0.0) - time.monotonic()))
        handle.cancel()


def _outcome(handle: Any) -> Outcome:
    try:
        result = handle.result(WAIT)
    except RequestError as error:
        return type(error).__name__, str(error)
    usage = replace(result.usage, cached_tokens=0)
    return (
        result.finish_reason.value,
        result.token_ids,
        result.text,
        result.logprobs,
        result.prompt_logprobs,
        result.stop_match,
        usage,
    )


def assert_same(mix: Sequence[Wanted], got: Sequence[Outcome], expected: Sequence[Outcome]) -> None:
    """Equal to the bit; a cancelled request has a beginning of what it would have had."""
    for number, (wanted, have, want) in enumerate(zip(mix, got, expected, strict=True)):
        if wanted.cancel_after is not None and have[0] == "cancelled":
            if len(want) > 2:
                assert want[1][: len(have[1])] == have[1], number
            continue
        assert have == want, f"request {number}: {have} is not {want}: {wanted}"
