"""Grammars compile before the ticket: two cold at once, equal ones together, errors at submit."""

from __future__ import annotations

import threading
import time

import pytest

from ninfer_core.contract.errors import InvalidSchema, QueueTimeout
from ninfer_core.contract.frontend import GrammarSource
from ninfer_core.contract.requests import ResponseFormat
from ninfer_core.engine.compile import COLD_COMPILES, GrammarIngress
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.fake_frontend import FakeFrontend

WAIT = 20.0


def source(text):
    return GrammarSource("grammar", text, "", text.encode())


def until(condition):
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def frontend():
    return FakeFrontend(64)


@pytest.fixture
def grammars(frontend):
    ingress = GrammarIngress(frontend)
    yield ingress
    frontend.compiling.set()
    ingress.close()


def compile_in_threads(grammars, texts):
    compiled = {}

    def run(index, text):
        compiled[index] = grammars.compile(source(text), WAIT)

    threads = [threading.Thread(target=run, args=item) for item in enumerate(texts)]
    for thread in threads:
        thread.start()
    return threads, compiled


def test_at_most_two_compile_at_once(frontend, grammars):
    frontend.compiling.clear()
    threads, compiled = compile_in_threads(grammars, [f"dead:{n}" for n in range(6)])
    until(lambda: frontend.compiling_now == COLD_COMPILES)
    frontend.compiling.set()
    for thread in threads:
        thread.join(WAIT)
    assert {compiled[n].dead_after for n in range(6)} == set(range(6))
    assert frontend.most_compiling == COLD_COMPILES == 2


def test_equal_sources_compile_once(frontend, grammars):
    frontend.compiling.clear()
    threads, compiled = compile_in_threads(grammars, ["dead:3"] * 5)
    until(lambda: frontend.compiling_now == 1)
    frontend.compiling.set()
    for thread in threads:
        thread.join(WAIT)
    assert frontend.compiles == ["dead:3"]
    assert len({id(one) for one in compiled.values()}) == 1
    assert grammars.compile(source("dead:3"), WAIT) is compiled[0]


def test_a_failed_compile_is_tried_again(frontend, grammars):
    for _ in range(2):
        with pytest.raises(InvalidSchema) as caught:
            grammars.compile(source("invalid"), WAIT)
        assert caught.value.pointer == "/value"
    assert frontend.compiles == ["invalid", "invalid"]


def test_the_kept_results_are_bounded(frontend, grammars):
    for number in range(40):
        grammars.compile(source(f"dead:{number}"), WAIT)
    grammars.compile(source("dead:39"), WAIT)
    assert len(frontend.compiles) == 40
    grammars.compile(source("dead:0"), WAIT)
    assert len(frontend.compiles) == 41


def test_only_constrained_requests_compile_and_a_bad_one_gets_no_ticket(options):
    harness = EngineHarness()
    harness.submit([5], options(2, ignore_eos=True))
    with pytest.raises(InvalidSchema):
        harness.submit(
            [5], options(2), response_format=ResponseFormat(kind="grammar", value="invalid")
        )
    assert harness.frontend.compiles == ["invalid"]
    assert harness.gate.count == 1
    harness.run_dry()


def test_a_slow_compile_counts_as_queueing(options):
    harness = EngineHarness()
    harness.frontend.compiling.clear()
    form = ResponseFormat(kind="grammar", value="free")
    with pytest.raises(QueueTimeout):
        harness.submit([5], options(2, queue_timeout=0.02), response_format=form)
    harness.frontend.compiling.set()
    assert harness.gate.count == 0
    assert harness.submit([5], options(2), response_format=form) is not None
    harness.run_dry()
