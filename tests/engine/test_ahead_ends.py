"""Rows that end in a round, or are forced, while they are in the one launched behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.events import FinishReason
from ninfer_core.engine.states import RequestState
from ninfer_core.testing.engine_answers import expected_without_stop
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.engine_watch import UnitWatch
from ninfer_core.testing.fake_instance import FAKE_LIMITS, KeepPolicy
from ninfer_core.testing.fake_law import CLOSE_TOKENS


def ahead(config=None, **rest):
    return EngineHarness(config, rounds_ahead=1, **rest)


def free(harness, seed, options, count=None, **rest):
    return harness.submit([5 + seed], options(count, seed=seed, ignore_eos=True, **rest))


def stopping(harness, options):
    """A request that stops at its fourth token, as the device may see and the host does not, and
    its tokens."""
    expected = expected_without_stop([5], 3, 4)
    assert expected[3] not in expected[:3]
    one = harness.submit([5], options(None, seed=3, ignore_eos=True, stop_token_ids=(expected[3],)))
    return one, expected


def test_a_known_cancel_is_not_launched_ahead(options):
    harness = ahead()
    first = free(harness, 0, options)
    free(harness, 1, options)
    harness.step(6)
    watch = UnitWatch(harness.program)
    harness.cancel(first)
    harness.step()
    assert watch.decode_rows == [(2,)]
    assert watch.decided == [("cancelled", "accept")]
    assert first.record.state is RequestState.ENDED


def test_a_cancel_between_two_launches_is_cancelled_in_one_round_and_void_in_the_next(options):
    harness = ahead()
    first, second = free(harness, 0, options), free(harness, 1, options)
    harness.step(6)
    watch = UnitWatch(harness.program)
    launch = harness.program.launch_decode

    def cancelling(rows, **rest):
        unit = launch(rows, **rest)
        if not first.record.cancel_requested:
            harness.cancel(first)
        return unit

    harness.program.launch_decode = cancelling
    count = len(first.record.tokens)
    harness.step()
    assert first.response.ends == 1
    harness.step()
    assert watch.decided == [("cancelled", "accept"), ("void", "accept")]
    assert watch.decode_rows == [(1, 2), (2,)]
    assert (len(first.record.tokens), second.response.ends) == (count, 0)


def test_the_end_is_published_with_its_round_and_the_lane_returns_after_the_next(options):
    harness = ahead(limits=replace(FAKE_LIMITS, max_concurrency=1))
    one, expected = stopping(harness, options)
    other = free(harness, 7, options, 2)
    while one.response.ends == 0:
        harness.step()
    harness.consume(one)
    assert list(one.events[-1].result.token_ids) == expected
    assert one.record.state is RequestState.MODEL_FINISHED
    assert one.record.sequence in harness.program.flying
    assert harness.core.scheduler.free_lane is None
    assert (harness.gate.count, other.record.started) == (1, False)
    assert harness.program.journal.void_rows == 0
    harness.step()
    assert harness.program.journal.void_rows == 1
    assert (one.record.state, one.record.sequence) == (RequestState.ENDED, None)
    assert harness.core.scheduler.free_lane == 0
    harness.run_dry()
    assert list(other.record.tokens) == expected_without_stop([12], 7, 2)
    assert harness.core.stats().finished == {"stop_token": 1, "output_limit": 1}


def test_an_engine_is_quiet_once_the_last_ended_row_holds_nothing(options):
    harness = ahead()
    one, _ = stopping(harness, options)
    while one.response.ends == 0:
        harness.step()
    harness.run_dry()
    harness.check_released()
    assert harness.lifecycle.wait_quiet(0.0)


def test_an_engine_may_close_while_an_ended_row_is_in_flight(options):
    harness = ahead()
    one, _ = stopping(harness, options)
    while one.response.ends == 0:
        harness.step()
    assert harness.program.flying
    assert harness.lifecycle.open_requests == 0
    assert not harness.lifecycle.wait_quiet(0.0)
    harness.core.fail(RuntimeError("fault"))
    assert harness.core.cleanup.troubles == []
    assert harness.lifecycle.open_requests == 0
    assert harness.lifecycle.wait_quiet(0.0)
    assert one.record.state is RequestState.ENDED
    harness.check()
    harness.check_released()


def test_an_end_is_kept_where_its_own_round_left_it(options):
    harness = ahead(policy=KeepPolicy())
    one, expected = stopping(harness, options)
    harness.run_dry()
    (kept,) = harness.program.contexts.checkpoints.values()
    assert list(kept.ledger) == [5, *expected[:-1]]
    assert one.response.ends == 1
    assert harness.program.journal.void_rows == 1


def test_forced_tokens_void_the_round_ahead_and_come_next(options):
    harness = ahead()
    tracked = harness.submit([5], options(9, ignore_eos=True, thinking_budget=4))
    watch = UnitWatch(harness.program)
    harness.run_dry()
    assert [entry.what for entry in watch.launches] == [
        "prefill",
        "decode",
        *["decode ahead"] * 3,
        "control",
        "decode",
        *["decode ahead"] * 2,
    ]
    assert watch.decided == [*[("accept",)] * 4, ("void",), *[("accept",)] * 4]
    tokens = list(tracked.record.tokens)
    assert tokens[:6] == [*expected_without_stop([5], 1, 4), *CLOSE_TOKENS]
    assert len(tokens) == 9


def test_a_void_row_that_was_to_go_on_can_be_cancelled(options):
    harness = ahead()
    tracked = harness.submit([5], options(9, ignore_eos=True, thinking_budget=4))
    while tracked.record.state is not RequestState.CONTROL_READY:
        harness.step()
    assert tracked.record.flying == 1
    harness.cancel(tracked)
    harness.step()
    result = tracked.response.terminal.result
    assert result.finish_reason is FinishReason.CANCELLED
    assert list(result.token_ids) == expected_without_stop([5], 1, 4)
    harness.run_dry()


@pytest.mark.parametrize("step", ["preview", "commit", "commit_end", "collect", "launch"])
def test_a_failure_drains_in_launch_order_and_rolls_back_the_other_way(options, step):
    harness = ahead()
    tracked = free(harness, 0, options)
    harness.step(5)
    watch = UnitWatch(harness.program)
    harness.faults.arm(step, EngineFailure("fault"))
    harness.step()
    aborted = {
        "preview": [1, 0],
        "commit": [1, 0],
        "commit_end": [1],
        "collect": [1, 0],
        "launch": [0],
    }
    assert harness.core.stopped
    collected = [unit for what, unit in watch.order if what == "collect"]
    assert collected == sorted(collected)
    assert [unit for what, unit in watch.order if what == "abort"] == aborted[step]
    assert harness.core.cleanup.troubles == []
    assert tracked.response.ends == 1
    harness.check_released()


def test_what_follows_at_once_begins_where_the_answer_before_ended(options):
    """The answer is out while its row is in the round launched behind it; the follow-up comes in
    that moment and waits for the end to be kept."""
    harness = ahead(policy=KeepPolicy())
    free(harness, 1, options)
    one, expected = stopping(harness, options)
    while not one.response.done:
        harness.step()
    assert one.record.flying
    follow = harness.submit([5, *expected, 8], options(3))
    harness.run_dry()
    assert follow.record.watch.cached_tokens == 1 + len(expected) - 1
    harness.check_released()


def test_what_came_before_the_end_does_not_wait_for_it(options):
    harness = ahead(policy=KeepPolicy())
    one, _ = stopping(harness, options)
    while not one.response.done:
        earlier = one.record.watch.submitted
        harness.step()
        harness.clock.advance(1.0)
    assert one.record.flying
    other = harness.submit([6, 7], options(3))
    assert harness.core.endings.awaited_by(other.record)
    scored = harness.submit([6, 7], options(3, prompt_logprobs=1))
    assert not harness.core.endings.awaited_by(scored.record)
    other.record.watch.submitted = earlier
    assert not harness.core.endings.awaited_by(other.record)
    harness.run_dry()
