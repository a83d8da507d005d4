"""A Program that breaks the contract, and ends of the engine at awkward moments."""

from __future__ import annotations

import time

import pytest

from ninfer_core.contract.checkpoints import Captured, CheckpointFacts
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.errors import EngineFailure, Unavailable
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.resources import CheckpointRef, ResourceVector
from ninfer_core.contract.units import Progress, UnitKind, UnitNeed
from ninfer_core.engine import Engine
from ninfer_core.engine.states import RequestState
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.fake_instance import fake_factory
from ninfer_core.testing.fake_law import continuation
from ninfer_core.testing.fake_transactions import FakeConfig

PROMPT = [7, 9, 11, 13, 8, 6, 5, 12, 10, 14]


def wrong_need(program, patch):
    patch.setattr(program, "unit_need", lambda s, control=0: UnitNeed(UnitKind.CONTROL, 1, False))


def wrong_sequence(program, patch):
    other = CheckpointRef(1, 2, 3)
    real = program._execution._progress

    def progress(kind, row):
        made = real(kind, row)
        return Progress(sequence=other, frontier=made.frontier)

    patch.setattr(program._execution, "_progress", progress)


def wrong_result(program, patch):
    facts = CheckpointFacts(
        frontier=1,
        coverage={},
        replicas=frozenset(),
        recovery_frontier=0,
        footprint=ResourceVector(),
    )
    real = program.begin

    def begin(plan):
        made = real(plan)
        made._apply = lambda: Captured(CheckpointRef(1, 2, 3), facts)
        return made

    patch.setattr(program, "begin", begin)


def no_token(program, patch):
    real = program._execution._outcome

    def outcome(launched):
        first = launched.rows[0]
        if launched.kind is UnitKind.PREFILL and first.permit.need.last:
            program._execution.in_flight.remove(launched)
            return program._execution._progress(launched.kind, first)
        return real(launched)

    patch.setattr(program._execution, "_outcome", outcome)


def missing_scores(program, patch):
    patch.setattr(program._execution, "_scored", lambda row: ())


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (wrong_need, "wants a control unit for a request in prefill"),
        (wrong_sequence, "another sequence"),
        (wrong_result, "a bind ended in Captured"),
        (no_token, "no token"),
        (missing_scores, "0 of 9 prompt positions"),
    ],
)
def test_a_broken_contract_ends_the_engine_and_says_what_broke(
    options, monkeypatch, break_it, said
):
    harness = EngineHarness()
    break_it(harness.program, monkeypatch)
    tracked = harness.submit(PROMPT, options(3, prompt_logprobs=0))
    for _ in range(20):
        harness.core.step()
    assert harness.core.stopped
    assert tracked.response.ends == 1
    assert said in harness.lifecycle.availability().reason
    assert isinstance(tracked.response.failure, EngineFailure)


def test_a_request_nobody_took_in_yet_ends_too(options):
    harness = EngineHarness()
    running = harness.submit(PROMPT, options(9))
    harness.step(2)
    late = harness.submit(PROMPT, options(9))
    dropped = harness.submit(PROMPT, options(9))
    dropped.handle = None
    harness.core.fail(RuntimeError("fault in the machine"))
    harness.core.fail(RuntimeError("again"))
    assert [t.response.ends for t in (running, late, dropped)] == [1, 1, 1]
    assert harness.lifecycle.open_requests == 0
    assert dropped.response.released
    with pytest.raises(EngineFailure, match="fault in the machine"):
        late.handle.result(0)
    with pytest.raises(Unavailable, match="fault in the machine"):
        harness.submit(PROMPT, options(9))
    harness.check_released()


def test_a_failure_is_told_as_the_instance_explains_it(options):
    harness = EngineHarness()
    running = harness.submit(PROMPT, options(9))
    harness.core._explain = lambda error: EngineFailure(f"the machine was lost: {error}")
    harness.step(2)
    harness.core.fail(RuntimeError("error 719"))
    with pytest.raises(EngineFailure, match=r"^the machine was lost: error 719"):
        running.handle.result(0)


def test_a_failure_is_logged_with_what_raised_it(options, caplog, monkeypatch):
    harness = EngineHarness()
    harness.submit(PROMPT, options(9))

    def broken(rows, ahead_of=None):
        raise RuntimeError("fault in the machine")

    monkeypatch.setattr(harness.program, "launch_decode", broken)
    for _ in range(20):
        harness.core.step()
    assert harness.core.stopped
    (told,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert told.name == "ninfer.engine"
    assert "in broken" in caplog.text
    assert "RuntimeError: fault in the machine" in caplog.text


def test_what_goes_wrong_while_a_failed_engine_is_cleaned_up_is_logged(
    options, caplog, monkeypatch
):
    monkeypatch.setattr("ninfer_core.engine.cleanup._ADVANCES", 3)
    harness = EngineHarness(FakeConfig(bind_steps=10_000))
    harness.submit(PROMPT, options(3))
    harness.step(2)
    harness.core.fail(RuntimeError("fault"))
    assert "a cancelled context transaction did not settle" in caplog.text


def test_a_failed_engine_forgets_what_it_has_launched(options):
    harness = EngineHarness(rounds_ahead=1)
    harness.submit(PROMPT, options(9))
    harness.step(4)
    units = harness.core.units
    units._unfinished.extend(units.flights)
    harness.core.fail(RuntimeError("fault"))
    assert units.flights == units._unfinished == []


def test_a_consumer_that_raises_when_it_is_told_ends_nobody(options, caplog):
    harness = EngineHarness()
    deaf, other = (harness.submit(PROMPT, options(5, seed=seed)) for seed in (1, 2))
    reached = []

    def raises():
        reached.append(1)
        raise RuntimeError("no loop any more")

    deaf.response.subscribe(raises)
    harness.run_dry()
    assert not harness.core.stopped
    assert reached
    assert [deaf.response.ends, other.response.ends] == [1, 1]
    assert "no loop any more" in caplog.text


@pytest.mark.parametrize("seconds", [1e12, 1e300, float("inf")])
def test_a_deadline_beyond_all_clocks_is_none(seconds):
    """A thread cannot be told to wait that long."""
    with Engine(fake_factory(), EngineOptions(queue_timeout=seconds)) as engine:
        for _ in range(2):
            asked = GenerationOptions(max_new_tokens=3, deadline=seconds, ignore_eos=True)
            handle = engine.submit(PromptInput(token_ids=PROMPT), asked)
            assert len(handle.result(20).token_ids) == 3
            time.sleep(0.05)  # The worker goes to sleep in between.
        assert engine.availability().ready
        assert engine.drain(seconds)


@pytest.mark.parametrize("state", [RequestState.MATERIALIZING, RequestState.PAUSING])
def test_an_open_transaction_is_settled_before_anything_is_released(options, state):
    config = FakeConfig(page_tokens=1, pages=20, host=90, bind_steps=3, pause_steps=3)
    harness = EngineHarness(config)
    for seed in range(2):
        harness.submit([5 + seed] * 3, options(14, seed=seed, ignore_eos=True))
    while all(t.record.state is not state for t in harness.requests):
        harness.step()
    harness.core.fail(RuntimeError("fault"))
    assert harness.core.cleanup.troubles == []
    assert [t.response.ends for t in harness.requests] == [1, 1]
    assert harness.program.contexts.current is None
    harness.check_released()


def test_a_transaction_that_never_settles_does_not_hold_the_responses(options, monkeypatch):
    monkeypatch.setattr("ninfer_core.engine.cleanup._ADVANCES", 3)
    harness = EngineHarness(FakeConfig(bind_steps=10_000))
    tracked = harness.submit(PROMPT, options(3))
    harness.step(2)
    harness.core.fail(RuntimeError("fault"))
    assert tracked.response.ends == 1
    assert "did not settle" in str(harness.core.cleanup.troubles[0])


def test_slow_transactions_run_on_the_real_thread(options):
    config = FakeConfig(page_tokens=1, pages=40, host=90, bind_steps=4, pause_steps=4)
    with Engine(fake_factory(config=config), EngineOptions(max_concurrency=3)) as engine:
        handles = [
            engine.submit(
                engine.prepare(PromptInput(token_ids=[seed + 3] * 4)), options(20, seed=seed)
            )
            for seed in range(4)
        ]
        for seed, handle in enumerate(handles):
            expected = continuation([seed + 3] * 4, seed, 64, 20)
            assert handle.result(20).token_ids == tuple(expected)
