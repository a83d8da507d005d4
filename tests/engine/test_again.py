"""A round once more without permits: when the engine asks for it, and that nothing else changes."""

from __future__ import annotations

import pytest

from ninfer_core.contract.requests import ResponseFormat
from ninfer_core.testing.engine_answers import expected_without_stop
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.engine_watch import UnitWatch
from ninfer_core.testing.fake_transactions import FakeConfig


def again(config=None):
    harness = EngineHarness(config, rounds_ahead=1)
    harness.program.again = True
    return harness


def free(harness, seed, options, count=None, **rest):
    return harness.submit([5 + seed], options(count, seed=seed, ignore_eos=True, **rest))


def test_rounds_of_the_same_rows_take_no_permits(options, monkeypatch):
    harness = again(FakeConfig(page_tokens=64))
    tracked = [free(harness, seed, options, 20) for seed in range(3)]
    harness.step(8)
    asked = []
    reserve = harness.program.reserve
    monkeypatch.setattr(harness.program, "reserve", lambda *a: (asked.append(a), reserve(*a))[1])
    watch = UnitWatch(harness.program)
    harness.step(4)
    assert not asked
    assert watch.decode_rows == [(1, 2, 3)] * 4
    harness.run_dry()
    for seed, one in enumerate(tracked):
        assert list(one.record.tokens) == expected_without_stop([5 + seed], seed, 20)


@pytest.mark.parametrize("page_tokens", [1, 2, 4])
def test_a_round_that_needs_pages_takes_permits(options, page_tokens):
    """Round n writes token n: a page more every ``page_tokens`` rounds. The second is launched with
    the first, by a permit; 38 are left."""
    harness = again(FakeConfig(page_tokens=page_tokens, pages=80))
    tracked = free(harness, 0, options, 41)
    harness.run_dry()
    assert list(tracked.record.tokens) == expected_without_stop([5], 0, 41)
    journal = harness.program.journal
    assert journal.rounds_ahead == 39
    assert journal.rounds_again == {1: 0, 2: 38 - 19, 4: 38 - 10}[page_tokens]


def test_a_row_that_leaves_or_joins_changes_the_round(options):
    harness = again(FakeConfig(page_tokens=64))
    free(harness, 0, options, 9)
    free(harness, 1, options, 30)
    harness.step(12)
    form = ResponseFormat(kind="grammar", value="free")
    harness.submit([9], options(5, seed=2, ignore_eos=True), response_format=form)
    free(harness, 3, options, 9)
    watch = UnitWatch(harness.program)
    harness.run_dry()
    assert {(2,), (2, 3), (2, 4)} & set(watch.decode_rows)
    assert 10 < harness.program.journal.rounds_again < harness.program.journal.rounds_ahead


def test_a_spent_budget_a_cancel_and_a_pause_are_seen_in_time(options):
    """The harness checks every token against the law, and what is held after every step."""
    harness = again(FakeConfig(page_tokens=64))
    thinking = free(harness, 0, options, 30, thinking_budget=4)
    stopped = free(harness, 1, options, 40)
    harness.step(10)
    harness.cancel(stopped)
    harness.run_dry()
    harness.check_released()
    assert len(thinking.record.tokens) == 30
    assert harness.program.journal.rounds_again > 10
