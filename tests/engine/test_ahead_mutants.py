"""Seeded bugs of launch-ahead: each breaks a rule on purpose, and the machine must notice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from ninfer_core.contract.units import Disposition, RowDecision
from ninfer_core.engine import permits, publication, units
from ninfer_core.engine.core import EngineCore
from ninfer_core.engine.endings import Endings
from ninfer_core.engine.permits import PermitDesk
from ninfer_core.engine.pressure import Pressure
from ninfer_core.engine.publication import Judged, Publisher
from ninfer_core.engine.states import RequestState
from ninfer_core.engine.units import UnitRunner

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
MUTANTS: dict[str, tuple[Plant, str]] = {}


HARMLESS = {
    "state": RequestState.DECODE_READY,
    "remaining": 1 << 20,
}
"""What a request would look like that needs the host for nothing."""


def mutant(symptom: str) -> Callable[[Plant], Plant]:
    """Register a bug and the words of the check that must notice it."""

    def register(plant: Plant) -> Plant:
        MUTANTS[plant.__name__] = plant, symptom
        return plant

    return register


def without(patch: Patch, *fields: str) -> None:
    """Have the choice of rows that go on look past these facts of a request."""
    real = permits._goes_on

    class Blind:
        def __init__(self, record):
            self._record = record

        def __getattr__(self, name):
            return HARMLESS[name] if name in fields else getattr(self._record, name)

    patch.setattr(permits, "_goes_on", lambda record, now: real(Blind(record), now))


@mutant("ended in the middle of something")
def released_before_the_round_ahead_settled(patch: Patch) -> None:
    def settle(self):
        while self._finished:
            self._release(self._finished.popleft())

    patch.setattr(Endings, "settle", settle)


@mutant("an end waits for a round ahead")
def the_end_published_with_the_round_ahead(patch: Patch) -> None:
    def settle(self):
        for _ in range(len(self._finished)):
            record = self._finished.popleft()
            self._finished.append(record) if record.flying else self._release(record)

    patch.setattr(Endings, "settle", settle)


@mutant("a finished request keeps its lane")
def never_released_after_the_round_ahead(patch: Patch) -> None:
    def settle(self):
        while self._finished:
            record = self._finished.popleft()
            (self._publish_end if record.flying else self._release)(record)

    patch.setattr(Endings, "settle", settle)


@mutant("accepted after its end|shown but not committed")
def accepted_instead_of_void(patch: Patch) -> None:
    real = Publisher._judge

    def judge(self, record, row, kind, now):
        one = real(self, record, row, kind, now)
        if one.decision.disposition is Disposition.VOID:
            decision = RowDecision(disposition=Disposition.ACCEPT, accepted=len(row.token_ids))
            return Judged(record, row, decision)
        return one

    patch.setattr(Publisher, "_judge", judge)


@mutant("cannot go from|interpreted|a row is void|accepted after its end|previewed")
def judged_as_if_it_had_not_ended(patch: Patch) -> None:
    patch.setattr(publication, "RequestState", DecodesAlways)


class DecodesAlways:
    """States by which no row is ever void."""

    MODEL_FINISHED = None
    DECODE_READY = RequestState.MODEL_FINISHED


@mutant("collected before an earlier one")
def the_round_ahead_collected_first(patch: Patch) -> None:
    real = UnitRunner.launch_ahead

    def launch_ahead(self, permitted):
        before = self.round
        real(self, permitted)
        if self.round is not before:
            self.round.pending = self.round.launched.collect()

    patch.setattr(UnitRunner, "launch_ahead", launch_ahead)


@mutant("committed before an earlier one|collected before an earlier one")
def settled_out_of_turn(patch: Patch) -> None:
    real = EngineCore._while_device_works

    def works(self, permitted):
        arrived = real(self, permitted)
        if len(self.units.flights) > 1 and self.units.round is self.units.flights[-1]:
            flight = self.units.flights[-1]
            self.publisher.settle(flight)
        return arrived

    patch.setattr(EngineCore, "_while_device_works", works)


@mutant("neither committed nor aborted")
def rolled_back_in_launch_order(patch: Patch) -> None:
    def abandon(self, attempt):
        attempt(self._permits.give_back)
        for flight in self.flights:
            attempt(partial(units._drain, flight))
        for flight in self.flights:
            attempt(partial(self._roll_back, flight))
        self.flights.clear()

    patch.setattr(UnitRunner, "abandon", abandon)


@mutant("a unit was dropped in flight|at rest with a round in flight")
def only_the_first_is_drained(patch: Patch) -> None:
    real = UnitRunner.abandon

    def abandon(self, attempt):
        del self.flights[1:]
        real(self, attempt)

    patch.setattr(UnitRunner, "abandon", abandon)


@mutant("does not name the one that it runs behind")
def the_round_before_not_named(patch: Patch) -> None:
    real = UnitRunner.settled

    def settled(self, flight):
        real(self, flight)
        self.round = None

    patch.setattr(UnitRunner, "settled", settled)


@mutant("unused permits|a permit that it may not have")
def a_permit_ahead_not_used(patch: Patch) -> None:
    real = PermitDesk.go_on
    patch.setattr(PermitDesk, "go_on", lambda self, rows: real(self, rows)[:1])


@mutant("a unit or a permit cannot be paused")
def paused_in_flight(patch: Patch) -> None:
    def pause_for(self, record):
        victims = self._scheduler.victims(record)
        return self._contexts.open or any(self.pause(victim) for victim in victims)

    patch.setattr(Pressure, "pause_for", pause_for)


@mutant("a decode unit was launched without its permit")
def launched_ahead_although_tokens_are_forced(patch: Patch) -> None:
    without(patch, "state")


@mutant("a permit for no token|is more than|accepted after")
def launched_past_the_budget(patch: Patch) -> None:
    without(patch, "remaining")


@mutant("a mask was filled before the round it follows was settled")
def masked_before_the_round_in_front_was_settled(patch: Patch) -> None:
    real = UnitRunner.launch_ahead

    def eager(self, rows):
        real(self, rows)
        self.finish()

    patch.setattr(UnitRunner, "launch_ahead", eager)


def drive(machine: ModuleType) -> None:
    short = settings(machine.SETTINGS, max_examples=80, phases=[Phase.generate])
    run_state_machine_as_test(machine.AheadMachine, settings=short)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_seeded_bug_is_caught(name: str, monkeypatch: Patch, machine: ModuleType) -> None:
    plant, symptom = MUTANTS[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=symptom):
        drive(machine)
