"""Seeded bugs: each one breaks a rule on purpose, and the state machine must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from ninfer_core.contract.events import FinishReason, GenerationStart, ReuseReason
from ninfer_core.contract.frontend import OutputSpan
from ninfer_core.contract.units import Disposition
from ninfer_core.engine import publication
from ninfer_core.engine.accounting import Accounting
from ninfer_core.engine.contexts import ContextDriver
from ninfer_core.engine.endings import Endings
from ninfer_core.engine.intake import Intake
from ninfer_core.engine.output import publish
from ninfer_core.engine.permits import PermittedUnits
from ninfer_core.engine.publication import Publisher
from ninfer_core.engine.queue import TicketQueue
from ninfer_core.engine.resource_manager import ResourceManager
from ninfer_core.engine.response import Response
from ninfer_core.engine.scheduler import Scheduler
from ninfer_core.engine.units import UnitRunner

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
MUTANTS: dict[str, tuple[Plant, str]] = {}


def mutant(symptom: str) -> Callable[[Plant], Plant]:
    """Register a bug and the words of the check that must notice it."""

    def register(plant: Plant) -> Plant:
        MUTANTS[plant.__name__] = plant, symptom
        return plant

    return register


@mutant("places are taken")
def double_release(patch: Patch) -> None:
    real = Response._settle
    patch.setattr(Response, "_settle", lambda self: (real(self), real(self)))


@mutant("places are taken")
def capacity_released_without_the_consumer(patch: Patch) -> None:
    real = Response.end

    def end(self, event, failure=None):
        real(self, event, failure)
        self.release()

    patch.setattr(Response, "end", end)


@mutant("shown but not committed")
def publish_before_commit(patch: Patch) -> None:
    real = Publisher._judge

    def judge(self, *args):
        one = real(self, *args)
        if one.preview is not None:
            publish(one.record, one.preview.deltas)
        return one

    patch.setattr(Publisher, "_judge", judge)


@mutant("a permit that it may not have|unused permits")
def lost_permit(patch: Patch) -> None:
    real = UnitRunner.launch

    def launch(self, units):
        return real(self, PermittedUnits(units.control, units.decode[:2], units.chunk))

    patch.setattr(UnitRunner, "launch", launch)


@mutant("past the budget")
def skipped_budget(patch: Patch) -> None:
    def span(record, row, kind):
        ends = len(row.token_ids) >= record.remaining
        return OutputSpan(
            token_ids=row.token_ids,
            logprobs=row.logprobs,
            limit=record.limit_reason if ends else None,
        )

    patch.setattr(publication, "_span", span)


@mutant("overtaken too often")
def unbounded_bypass(patch: Patch) -> None:
    patch.setattr(TicketQueue, "overtake", lambda self, admitted: None)


@mutant("out of turn")
def newest_first(patch: Patch) -> None:
    real = TicketQueue.candidates
    patch.setattr(TicketQueue, "candidates", lambda self: real(self)[::-1])


@mutant("a cancel was ignored")
def ignored_cancel(patch: Patch) -> None:
    real = Endings.request

    def request(self, record, ending):
        if ending is not FinishReason.CANCELLED:
            real(self, record, ending)

    patch.setattr(Endings, "request", request)


@mutant("2 happened")
def ended_twice(patch: Patch) -> None:
    real = Response.end
    patch.setattr(Response, "end", lambda self, *a: (real(self, *a), setattr(self, "ends", 2)))


@mutant("a lane is lost")
def lost_lane(patch: Patch) -> None:
    real = Scheduler.leave

    def leave(self, record):
        lane = record.lane
        real(self, record)
        if lane == 1:
            self._free_lanes.remove(lane)

    patch.setattr(Scheduler, "leave", leave)


@mutant("a sequence has no request")
def sequence_never_released(patch: Patch) -> None:
    patch.setattr(
        ResourceManager, "release", lambda self, record: setattr(record, "sequence", None)
    )


@mutant("ResumeState")
def resume_state_never_discarded(patch: Patch) -> None:
    def discard(self, record):
        record.resume = None
        self._scheduler.unpark(record)

    patch.setattr(Endings, "_discard", discard)


@mutant("closing was never forced")
def forced_tokens_forgotten(patch: Patch) -> None:
    real = Accounting.accept

    def accept(self, record, row, preview, pending):
        preview.forced = ()
        real(self, record, row, preview, pending)

    patch.setattr(Accounting, "accept", accept)


@mutant("the books differ")
def a_token_booked_twice(patch: Patch) -> None:
    real = Accounting.accept

    def accept(self, record, row, preview, pending):
        real(self, record, row, preview, pending)
        if len(record.tokens) == 4:
            record.tokens.append(record.tokens[-1])

    patch.setattr(Accounting, "accept", accept)


@mutant("accepts 1 of")
def part_of_a_round_committed(patch: Patch) -> None:
    real = Publisher._judge

    def judge(self, *args):
        one = real(self, *args)
        if one.decision.disposition is Disposition.ACCEPT and one.decision.accepted > 1:
            return replace(one, decision=replace(one.decision, accepted=1))
        return one

    patch.setattr(Publisher, "_judge", judge)


@mutant("a second start")
def started_again_after_a_pause(patch: Patch) -> None:
    real = ContextDriver._resumed

    def resumed(self, record, bound):
        real(self, record, bound)
        record.response.put(GenerationStart(1, 0, ReuseReason.DISABLED))

    patch.setattr(ContextDriver, "_resumed", resumed)


@mutant("waits past its queue deadline")
def queue_timeout_ignored(patch: Patch) -> None:
    patch.setattr(Intake, "_expire", lambda self, ticket, kind: None)


@mutant("paused for nobody older")
def the_oldest_makes_way(patch: Patch) -> None:
    real = Scheduler.victims

    def victims(self, older_than):
        return self.residents[:1] if real(self, older_than) else []

    patch.setattr(Scheduler, "victims", victims)


@mutant("none can go on")
def capacity_event_missed(patch: Patch) -> None:
    real = Endings.settle

    def settle(self):
        due = self._events.resume_due, self._events.admit_due
        real(self)
        self._events.resume_due, self._events.admit_due = due

    patch.setattr(Endings, "settle", settle)


def drive(machine: ModuleType) -> None:
    short = settings(machine.SETTINGS, max_examples=80, phases=[Phase.generate])
    run_state_machine_as_test(machine.EngineMachine, settings=short)


def test_without_a_bug_the_same_run_passes(machine: ModuleType) -> None:
    drive(machine)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_seeded_bug_is_caught(name: str, monkeypatch: Patch, machine: ModuleType) -> None:
    plant, symptom = MUTANTS[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=symptom):
        drive(machine)
