"""What the engine does while it waits for a round changes nothing."""

from __future__ import annotations

import pytest

from ninfer_core.contract.events import Delta, Failed, Finished, FinishReason
from ninfer_core.contract.requests import GenerationOptions, ResponseFormat
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.engine.states import RequestState
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.fake_frontend import FakeSession, text_of
from ninfer_core.testing.fake_program import FakeProgram
from ninfer_core.testing.fake_transactions import FakeConfig
from ninfer_core.testing.fake_units import FakeLaunched


@pytest.fixture
def rehearsing(monkeypatch):
    """Has every collect rehearse before it gives anything; counts the previews of spans."""
    counts = {"rehearsed": 0, "previews": 0}
    rehearsals = {}
    collect, preview = FakeLaunched.collect, FakeSession.preview

    def before_results(self, rehearse):
        rehearsals[self._execution] = rehearse

    def collected(self):
        counts["rehearsed"] += 1
        rehearsals[self._outcome.__self__]()
        return collect(self)

    def previewed(self, span):
        counts["previews"] += 1
        return preview(self, span)

    def start():
        monkeypatch.setattr(FakeProgram, "before_results", before_results)
        monkeypatch.setattr(FakeLaunched, "collect", collected)
        monkeypatch.setattr(FakeSession, "preview", previewed)
        return counts

    return start


def said(event):
    if isinstance(event, Delta):
        return event
    if isinstance(event, Failed):
        return type(event.error)
    if isinstance(event, Finished):
        one = event.result
        return one.text, one.token_ids, one.finish_reason, one.stop_match, one.logprobs
    return event


def answers(rounds_ahead, burst):
    """All that the consumers of a mixed batch see, and the engine's counters behind them."""
    harness = EngineHarness(FakeConfig(burst=burst), rounds_ahead=rounds_ahead)
    given = [
        {"max_new_tokens": 9},
        {"stop": (text_of([11, 12]),), "max_new_tokens": 30},
        {"thinking_budget": 3, "max_new_tokens": 12},
        {"logprobs": 0},
        {"max_new_tokens": 7, "format": ResponseFormat(kind="grammar", value="free")},
    ]
    tracked = []
    for seed, fields in enumerate(given):
        form = fields.pop("format", None)
        options = GenerationOptions(
            sampling=SamplingParams(seed=seed), ignore_eos=seed % 2 == 0, **fields
        )
        prompt = {} if form is None else {"response_format": form}
        tracked.append(harness.submit([5 + seed] * (1 + 9 * seed), options, **prompt))
    harness.step(12)
    harness.cancel(tracked[3])
    harness.run_dry()
    harness.check_released()
    for one in tracked:
        harness.consume(one)
    return [[said(event) for event in one.events] for one in tracked], harness.core.stats()


@pytest.mark.parametrize("rounds_ahead", [0, 1])
@pytest.mark.parametrize("burst", [1, 3])
def test_answers_are_the_same(rehearsing, rounds_ahead, burst):
    plain = answers(rounds_ahead, burst)
    counts = rehearsing()
    assert answers(rounds_ahead, burst) == plain
    deltas = sum(isinstance(event, Delta) for events in plain[0] for event in events)
    assert counts["rehearsed"] > 20
    assert counts["previews"] > 1.5 * deltas, "rows in flight were not judged"


def test_what_is_due_is_left_to_the_next_cycle():
    harness = EngineHarness(FakeConfig(), rounds_ahead=1)
    one = harness.submit([5, 6, 7], GenerationOptions(max_new_tokens=20, ignore_eos=True))
    harness.step(6)
    core = harness.core
    (record,) = core.intake.open.values()
    assert record.state is RequestState.DECODE_READY
    core.endings.request(record, FinishReason.CANCELLED)
    moved, capacity = core.transitions.count, core.program.capacity()
    core.rehearse()
    assert core.endings.due
    assert core.transitions.count == moved
    assert core.program.capacity() == capacity
    harness.run_dry()
    harness.consume(one)
    assert one.events[-1].result.finish_reason is FinishReason.CANCELLED
