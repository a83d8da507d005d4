"""Cancellation and deadlines, in every state a request can be in."""

from __future__ import annotations

import pytest

from ninfer_core.contract.checkpoints import ResumeKind
from ninfer_core.contract.errors import DeadlineExceeded
from ninfer_core.contract.events import Failed, Finished, FinishReason, GenerationStart
from ninfer_core.engine.queue import DeadlineKind
from ninfer_core.engine.states import RequestState
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.fake_frontend import text_of
from ninfer_core.testing.fake_instance import KeepPolicy
from ninfer_core.testing.fake_transactions import FakeConfig

REPLAY = frozenset({ResumeKind.REPLAY})
SLOW = FakeConfig(page_tokens=1, pages=30, host=90, bind_steps=3, pause_steps=3)


def reach(state, options):
    """A harness and one of its requests in ``state``, with an older one beside it."""
    harness = EngineHarness(SLOW if state.value.endswith("ing") else None, max_pending=6)
    if state in (RequestState.PAUSED, RequestState.PAUSING, RequestState.REPLAY):
        config = FakeConfig(page_tokens=1, pages=30, pause_kinds=REPLAY, pause_steps=2)
        harness = EngineHarness(config)
    budget = 2 if state is RequestState.CONTROL_READY else None
    harness.submit([5], options(20, ignore_eos=True))
    others = 4 if state is RequestState.WAITING else 1
    for seed in range(others):
        sought = harness.submit(
            list(range(3, 14)),
            options(30, seed=seed, ignore_eos=True, thinking_budget=budget),
        )
    for _ in range(200):
        if sought.record.state is state:
            return harness, sought
        harness.step()
    raise AssertionError(f"{state} was not reached")


@pytest.mark.parametrize(
    "state",
    [s for s in RequestState if s not in (RequestState.MODEL_FINISHED, RequestState.ENDED)],
)
@pytest.mark.parametrize("how", ["cancel", "close", "drop"])
def test_a_cancel_takes_effect_from_every_state(options, state, how):
    harness, sought = reach(state, options)
    committed = list(sought.record.tokens)
    getattr(harness, how)(sought)
    harness.step()
    if state not in (RequestState.MATERIALIZING, RequestState.PAUSING):
        assert sought.response.ends == 1, "one boundary is enough"
    harness.run_dry()
    terminal = sought.response.terminal
    assert isinstance(terminal, Finished)
    result = terminal.result
    assert result.finish_reason is FinishReason.CANCELLED
    assert list(result.token_ids) == committed
    assert result.text == text_of(committed), "held-back text is flushed"
    assert harness.requests[0].response.terminal.result.finish_reason is FinishReason.OUTPUT_LIMIT
    harness.check_released()


def test_a_request_cancelled_before_it_began_has_an_empty_result_and_no_start(options):
    harness, sought = reach(RequestState.WAITING, options)
    harness.cancel(sought)
    harness.step()
    harness.consume(sought)
    assert [type(event) for event in sought.events] == [Finished]
    assert sought.events[0].result.text == ""
    harness.run_dry()


def test_cancels_of_a_pending_row_accept_nothing_of_it(options, monkeypatch):
    harness = EngineHarness()
    first, second = (harness.submit([5 + s], options(20, seed=s, ignore_eos=True)) for s in (0, 1))
    harness.step(5)
    counts = [len(one.record.tokens) for one in (first, second)]
    decisions = []
    commit = harness.program.commit

    def spied(pending, chosen):
        decisions.extend(decision.disposition.value for decision in chosen)
        return commit(pending, chosen)

    monkeypatch.setattr(harness.program, "commit", spied)
    real = harness.program.launch_decode

    def launch(rows, **rest):
        harness.cancel(first)
        return real(rows, **rest)

    monkeypatch.setattr(harness.program, "launch_decode", launch)
    harness.step()
    assert decisions == ["cancelled", "accept"]
    assert [len(one.record.tokens) for one in (first, second)] == [counts[0], counts[1] + 1]
    assert first.response.ends == 1
    monkeypatch.undo()
    harness.run_dry()


def test_a_cancelled_output_is_never_kept(options):
    harness = EngineHarness(policy=KeepPolicy())
    tracked = harness.submit([5] * 9, options(20, ignore_eos=True))
    harness.step(6)
    harness.cancel(tracked)
    harness.run_dry()
    assert len(harness.core.resources) == 0


def test_cancel_after_the_end_changes_nothing(options):
    harness = EngineHarness()
    tracked = harness.submit([5], options(2, ignore_eos=True))
    harness.run_dry()
    tracked.handle.cancel()
    harness.run_dry()
    harness.consume(tracked)
    assert tracked.events[-1].result.finish_reason is FinishReason.OUTPUT_LIMIT


@pytest.mark.parametrize(
    "state",
    [s for s in RequestState if s not in (RequestState.MODEL_FINISHED, RequestState.ENDED)],
)
def test_a_deadline_fails_the_request_from_every_state(options, state):
    harness, sought = reach(state, options)
    harness.clock.advance(1.0)
    sought.record.deadline = harness.clock.now
    sought.record.options = options(30, deadline=1.0, ignore_eos=True)
    harness.core.intake._deadlines.push(
        harness.clock.now, sought.record.ticket, DeadlineKind.REQUEST
    )
    for _ in range(4):
        harness.core.step()
    harness.run_dry()
    terminal = sought.response.terminal
    assert isinstance(terminal, Failed)
    assert isinstance(terminal.error, DeadlineExceeded)
    assert (terminal.partial is None) == (not sought.record.started)
    harness.check_released()


def test_a_deadline_given_at_submit_is_kept(options):
    harness = EngineHarness()
    tracked = harness.submit([5], options(40, ignore_eos=True, deadline=2.0))
    harness.step(6)
    harness.clock.advance(2.5)
    harness.step()
    harness.consume(tracked)
    assert isinstance(tracked.events[0], GenerationStart)
    end = tracked.events[-1]
    assert isinstance(end.error, DeadlineExceeded)
    assert list(end.partial.token_ids) == tracked.response.shown
    assert len(end.partial.token_ids) > 0
    harness.run_dry()


def test_the_oldest_deadline_bounds_the_workers_sleep(options):
    harness = EngineHarness(FakeConfig(slots=1), queue_timeout=9.0)
    harness.submit([5], options(40, deadline=4.0))
    harness.submit([5], options(40))
    harness.step()
    assert harness.core.intake.seconds_to_deadline() == 4.0
    harness.clock.advance(3.0)
    assert harness.core.intake.seconds_to_deadline() == 1.0
    harness.run_dry()
