"""What the contract forbids around a round ahead; the fake Program refuses each of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ninfer_core.contract.checkpoints import ResumeKind
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import Shortfall
from ninfer_core.contract.units import DecodeRow, Disposition, RowDecision
from ninfer_core.testing.fake_accounts import Amount
from ninfer_core.testing.fake_instance import FAKE_LIMITS
from ninfer_core.testing.fake_program import FakeProgram
from ninfer_core.testing.fake_transactions import FakeConfig
from ninfer_core.testing.program_driver import ProgramDriver

ACCEPT = RowDecision(disposition=Disposition.ACCEPT, accepted=1)
LAST = replace(ACCEPT, terminal=True)
VOID = RowDecision(disposition=Disposition.VOID)


class Pair:
    """Two rounds of one sequence, the second ahead of the first."""

    def __init__(self, config=None):
        self.program = FakeProgram(replace(FAKE_LIMITS, rounds_ahead=1), config)
        self.driver = ProgramDriver(self.program)
        self.sequence = self.driver.bind([5, 6, 7])
        self.driver.prefill(self.sequence)
        self.handle = self.sequence.handle
        self.first = self.launch(None)

    def launch(self, ahead_of, finish=True):
        row = DecodeRow(sequence=self.handle, permit=self.driver.permit(self.sequence))
        unit = self.program.launch_decode([row], ahead_of=ahead_of)
        if finish:
            unit.finish()
        return unit

    def settle(self, unit, decision):
        self.program.commit(unit.collect(), [decision])


@pytest.fixture
def pair():
    return Pair()


def test_a_permit_ahead_reaches_over_the_round_in_flight():
    pair = Pair(FakeConfig(page_tokens=1, pages=5))
    held = pair.program.accounts.held(pair.handle).pages
    assert held == 4, "three of the prompt, one that the first round executes"
    second = pair.launch(pair.first)
    assert pair.program.accounts.held(pair.handle).pages == 5
    pair.settle(pair.first, ACCEPT)
    assert pair.program.accounts.held(pair.handle).pages == 5, "the second round keeps its page"
    pair.settle(second, VOID)
    assert pair.program.accounts.held(pair.handle).pages == 4


def test_a_refused_permit_ahead_holds_nothing():
    pair = Pair(FakeConfig(page_tokens=1, pages=9))
    pair.program.accounts.take("ballast", Amount(pages=5))
    need = pair.program.unit_need(pair.handle)
    assert pair.program.reserve(pair.handle, need) == Shortfall("main", 1, 0)
    pair.settle(pair.first, ACCEPT)


def test_the_round_ahead_goes_on_from_what_the_first_one_made(pair):
    second = pair.launch(pair.first)
    one, two = pair.first.collect(), second.collect()
    plain = FakeProgram(FAKE_LIMITS)
    driver = ProgramDriver(plain)
    alone = driver.bind([5, 6, 7])
    expected = driver.generate(alone, 3)
    assert [*one.rows[0].token_ids, *two.rows[0].token_ids] == expected[1:]
    pair.program.commit(one, [ACCEPT])
    pair.program.commit(two, [ACCEPT])


def test_a_void_row_stays_where_the_first_round_left_it(pair):
    second = pair.launch(pair.first)
    pair.settle(pair.first, ACCEPT)
    pair.settle(second, VOID)
    again = pair.launch(None).collect()
    plain = ProgramDriver(FakeProgram(FAKE_LIMITS))
    expected = plain.generate(plain.bind([5, 6, 7]), 3)
    assert list(again.rows[0].token_ids) == expected[2:]
    pair.program.abort(again)


def test_rounds_are_collected_in_launch_order(pair):
    second = pair.launch(pair.first)
    with pytest.raises(EngineFailure, match="collected before an earlier one"):
        second.collect()


def test_rounds_are_committed_in_launch_order(pair):
    second = pair.launch(pair.first)
    pair.first.collect()
    later = second.collect()
    with pytest.raises(EngineFailure, match="committed before an earlier one"):
        pair.program.commit(later, [ACCEPT])


@pytest.mark.parametrize("collected", [False, True])
def test_rounds_are_aborted_in_reverse_launch_order(pair, collected):
    second = pair.launch(pair.first)
    pending = pair.first.collect()
    if collected:
        second.collect()
    with pytest.raises(EngineFailure, match="aborted"):
        pair.program.abort(pending)


def test_an_end_cannot_be_accepted_twice(pair):
    second = pair.launch(pair.first)
    pair.settle(pair.first, LAST)
    with pytest.raises(EngineFailure, match="accepted after its end"):
        pair.settle(second, ACCEPT)


def test_what_ran_on_refused_tokens_cannot_be_accepted(pair):
    second = pair.launch(pair.first)
    pair.settle(pair.first, RowDecision(disposition=Disposition.CANCELLED))
    with pytest.raises(EngineFailure, match="tokens nobody accepted"):
        pair.settle(second, ACCEPT)


def test_only_a_row_that_was_ahead_can_be_void(pair):
    with pytest.raises(EngineFailure, match="went on from no other round"):
        pair.settle(pair.first, VOID)


def test_a_sequence_in_a_round_ahead_is_neither_ended_nor_paused(pair):
    second = pair.launch(pair.first)
    pair.settle(pair.first, LAST)
    with pytest.raises(EngineFailure, match="in the middle of something"):
        pair.program.finish(pair.handle, keep=False)
    with pytest.raises(EngineFailure, match="cannot be paused"):
        pair.program.plan_pause(pair.handle, ResumeKind.REPLAY)
    pair.settle(second, VOID)
    pair.program.finish(pair.handle, keep=False)


def test_one_round_ahead_and_no_more(pair):
    pair.launch(pair.first)
    with pytest.raises(EngineFailure, match="may not have now"):
        pair.driver.permit(pair.sequence)


def test_the_round_before_is_named(pair):
    row = DecodeRow(sequence=pair.handle, permit=pair.driver.permit(pair.sequence))
    with pytest.raises(EngineFailure, match="does not name"):
        pair.program.launch_decode([row])


def test_nothing_runs_behind_an_unfinished_round():
    pair = Pair()
    pair.settle(pair.first, ACCEPT)
    unfinished = pair.launch(None, finish=False)
    with pytest.raises(EngineFailure, match="behind an unfinished one"):
        pair.launch(unfinished)


def test_a_program_that_offers_nothing_ahead_gives_no_permit_for_it():
    program = FakeProgram(FAKE_LIMITS)
    driver = ProgramDriver(program)
    sequence = driver.bind([5, 6, 7])
    driver.prefill(sequence)
    program.launch_decode([DecodeRow(sequence=sequence.handle, permit=driver.permit(sequence))])
    with pytest.raises(EngineFailure, match="may not have now"):
        program.unit_need(sequence.handle)
