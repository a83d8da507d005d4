"""Launch-ahead: what is enqueued behind an uncollected round, in which order, who is left out."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ninfer_core.contract.checkpoints import ResumeKind
from ninfer_core.contract.requests import ResponseFormat
from ninfer_core.contract.resources import Shortfall
from ninfer_core.engine.states import RequestState
from ninfer_core.testing.engine_answers import expected_without_stop
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.engine_watch import UnitWatch
from ninfer_core.testing.fake_accounts import Amount
from ninfer_core.testing.fake_instance import KeepPolicy
from ninfer_core.testing.fake_transactions import FakeConfig

LONG = list(range(3, 35))


def ahead(config=None, **rest):
    return EngineHarness(config, rounds_ahead=1, **rest)


def free(harness, seed, options, count=None, **rest):
    return harness.submit([5 + seed], options(count, seed=seed, ignore_eos=True, **rest))


def constrained(harness, seed, options, count=None, source="free"):
    form = ResponseFormat(kind="grammar", value=source)
    return harness.submit(
        [5 + seed], options(count, seed=seed, ignore_eos=True), response_format=form
    )


def test_the_next_round_is_enqueued_before_the_present_one_is_collected(options):
    harness = ahead()
    free(harness, 0, options)
    harness.step(2)
    watch = UnitWatch(harness.program)
    harness.step(3)
    assert watch.order == [
        ("decode", 0),
        ("decode ahead", 1),
        ("collect", 0),
        ("commit", 0),
        ("decode ahead", 2),
        ("collect", 1),
        ("commit", 1),
        ("decode ahead", 3),
        ("collect", 2),
        ("commit", 2),
    ]
    assert len(harness.program.flying) == 1


def test_nothing_is_launched_ahead_where_the_program_does_not_offer_it(options):
    harness = EngineHarness()
    free(harness, 0, options)
    harness.run_dry()
    assert harness.program.journal.rounds_ahead == 0


def test_the_last_round_of_a_budget_is_known_and_none_is_launched_behind_it(options):
    harness = ahead()
    tracked = free(harness, 0, options, 6)
    harness.run_dry()
    assert list(tracked.record.tokens) == expected_without_stop([5], 0, 6)
    journal = harness.program.journal
    assert (len(journal.decode_rows), journal.rounds_ahead, journal.void_rows) == (5, 4, 0)


@pytest.mark.parametrize("burst", [1, 3])
def test_the_end_of_the_context_is_known(options, burst):
    harness = ahead(FakeConfig(burst=burst))
    tracked = free(harness, 0, options)
    harness.run_dry()
    assert list(tracked.record.tokens) == expected_without_stop([5], 0, 63)
    assert harness.program.journal.void_rows == 0
    assert harness.program.journal.rounds_ahead > 10


def test_rows_join_the_round_behind_the_one_in_flight(options):
    harness = ahead()
    for seed in range(3):
        free(harness, seed, options, 7)
    watch = UnitWatch(harness.program)
    harness.run_dry()
    alone, all_three = [(1,), (1,), (1, 2)], [(1, 2, 3)] * 3
    assert watch.decode_rows == [*alone, *all_three, (2, 3), (2, 3), (3,)]
    kinds = [entry.what for entry in watch.launches if "decode" in entry.what]
    assert kinds == ["decode", *["decode ahead"] * 8]


def test_a_chunk_runs_between_two_rounds_in_every_cycle(options):
    harness = ahead()
    free(harness, 0, options)
    harness.step(4)
    harness.submit(LONG, options(1, ignore_eos=True))
    harness.step()
    watch = UnitWatch(harness.program)
    harness.step(2)
    assert watch.order == [
        ("prefill", 1),
        ("decode ahead", 2),
        ("collect", 0),
        ("commit", 0),
        ("collect", 1),
        ("prefill", 3),
        ("decode ahead", 4),
        ("collect", 2),
        ("commit", 2),
        ("collect", 3),
    ]


def test_a_row_with_a_mask_goes_on_and_is_masked_once_the_round_before_is_settled(options):
    """The fake Program refuses masks that are asked for any earlier."""
    harness = ahead()
    tracked = constrained(harness, 0, options, 6)
    watch = UnitWatch(harness.program)
    harness.run_dry()
    kinds = [entry.what for entry in watch.launches]
    assert kinds == ["prefill", "decode", *["decode ahead"] * 4]
    assert list(tracked.record.tokens) == expected_without_stop([5], 0, 6)


def test_rows_with_masks_run_in_every_round_beside_others(options):
    harness = ahead()
    one = free(harness, 0, options)
    constrained(harness, 1, options)
    constrained(harness, 2, options)
    harness.step(6)
    watch = UnitWatch(harness.program)
    harness.step(4)
    assert watch.decode_rows == [(1, 2, 3)] * 4
    harness.cancel(one)
    harness.step(2)
    watch = UnitWatch(harness.program)
    harness.step(4)
    assert watch.decode_rows == [(2, 3)] * 4


def test_a_dead_end_behind_a_round_in_flight_is_that_rows_alone(options):
    harness = ahead()
    other = free(harness, 0, options, 12)
    ended = constrained(harness, 1, options, source="dead:3")
    harness.run_dry()
    assert len(ended.record.tokens) == 3
    assert ended.record.response.done
    assert list(other.record.tokens) == expected_without_stop([5], 0, 12)


def test_for_a_round_ahead_nothing_is_given_up(options):
    """The page that it lacks is taken from the cache by the round itself, once it is due."""
    harness = ahead(FakeConfig(page_tokens=4), policy=KeepPolicy())
    harness.submit([9] * 8, options(4, ignore_eos=True))
    harness.run_dry()
    tracked = free(harness, 0, options, 30)
    harness.step(3)
    accounts = harness.program.accounts
    accounts.take("ballast", Amount(pages=accounts.free.pages))
    watch = UnitWatch(harness.program)
    while harness.program.flying:
        assert len(harness.core.resources) == 1
        harness.step()
    assert watch.launches[-1].what == "decode ahead"
    assert len(harness.core.resources) == 1
    assert not tracked.record.blocked
    harness.step()
    assert [entry.what for entry in watch.launches[-2:]] == ["decode", "decode ahead"]
    assert len(harness.core.resources) == 0, "the round that is due takes what it needs"
    accounts.give_all("ballast")
    harness.run_dry()
    assert list(tracked.record.tokens) == expected_without_stop([5], 0, 30)


def test_an_older_row_without_room_has_one_in_flight_paused_in_the_next_cycle(options):
    """The victim is kept out of one round, which settles; it would never stand still by itself."""
    config = FakeConfig(page_tokens=16, pause_kinds=frozenset({ResumeKind.REPLAY}))
    harness = ahead(config)
    form = ResponseFormat(kind="grammar", value="free")
    old = harness.submit([5] * 14, options(None, ignore_eos=True), response_format=form)
    young = free(harness, 1, options)
    harness.step(5)
    accounts = harness.program.accounts
    accounts.take("ballast", Amount(pages=accounts.free.pages))
    while not old.record.blocked:
        harness.step()
        assert harness.steps < 30
    assert young.record.state is RequestState.DECODE_READY
    assert harness.program.contexts.sequence(young.record.sequence).frontier < 13, "room for more"
    harness.step()
    assert young.record.state is RequestState.PAUSED
    accounts.give_all("ballast")
    harness.core.events.changed()
    harness.run_dry()
    assert list(old.record.tokens) == expected_without_stop([5] * 14, 1, 50)
    assert list(young.record.tokens) == expected_without_stop([6], 1, 63)


def test_rows_in_flight_that_make_way_lose_nothing(options):
    config = FakeConfig(page_tokens=1, pages=30, pause_kinds=frozenset({ResumeKind.REPLAY}))
    harness = ahead(config)
    old, young = free(harness, 0, options, 20), free(harness, 1, options, 20)
    harness.run_dry()
    for tracked, seed in ((old, 0), (young, 1)):
        assert list(tracked.record.tokens) == expected_without_stop([5 + seed], seed, 20)
    assert old.record.watch.pauses == 0
    assert young.record.watch.pauses > 0
    harness.check_released()


def test_a_program_may_refuse_to_run_a_row_ahead(options):
    harness = ahead()
    one = free(harness, 0, options, 5)
    free(harness, 1, options, 9)
    reserve = harness.program.reserve

    def refusing(sequence, need):
        if sequence == one.record.sequence and one.record.flying:
            return Shortfall("rounds_ahead", 1, 0)
        return reserve(sequence, need)

    harness.program.reserve = refusing
    watch = UnitWatch(harness.program)
    harness.run_dry()
    with_one = [1 in rows for rows in watch.decode_rows]
    assert sum(with_one) == 4
    assert (True, True) not in set(pairwise(with_one[1:]))
    assert list(one.record.tokens) == expected_without_stop([5], 0, 5)
