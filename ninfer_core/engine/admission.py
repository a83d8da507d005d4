"""Who becomes resident: the oldest paused request, then the waiting ones."""

from __future__ import annotations

from functools import partial

from ninfer_core.contract.checkpoints import Plan
from ninfer_core.contract.errors import Infeasible
from ninfer_core.contract.program import PlanOutcome
from ninfer_core.contract.resources import CheckpointRef, NeverFits, Shortfall
from ninfer_core.engine.capacity_events import CapacityEvents
from ninfer_core.engine.contexts import ContextDriver
from ninfer_core.engine.endings import Endings
from ninfer_core.engine.pressure import Pressure
from ninfer_core.engine.queue import TicketQueue
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.resource_manager import ResourceManager
from ninfer_core.engine.scheduler import Scheduler


class Admission:
    """Bounded scans, started by capacity and queue events only."""

    def __init__(
        self,
        scheduler: Scheduler,
        queue: TicketQueue,
        resources: ResourceManager,
        contexts: ContextDriver,
        pressure: Pressure,
        endings: Endings,
        events: CapacityEvents,
    ) -> None:
        self._scheduler = scheduler
        self._queue = queue
        self._resources = resources
        self._contexts = contexts
        self._pressure = pressure
        self._endings = endings
        self._events = events

    def resume_oldest(self) -> None:
        """Try the whole resume of the oldest paused request.

        While an older resident lives it takes idle and optional room only; afterwards it may take
        lanes and room back from younger residents.
        """
        if self._contexts.open or not self._events.resume_due:
            return
        record = self._scheduler.resume_candidate()
        if record is None:
            return
        self._events.resume_due = False
        modest = self._scheduler.has_resident_older_than(record)
        short = self._bind(record, optional_only=modest)
        if short is None or modest:
            return
        if self._pressure.pause_for(record):
            self._events.resume_due = True
        elif not self._scheduler.residents:
            self._last_resort(record, short)

    def admit_fresh(self) -> None:
        """Offer what is left to the head of the queue and its followers within reach."""
        if not self._events.admit_due or self._scheduler.anyone_blocked():
            return
        while not self._contexts.open and self._scheduler.free_lane is not None:
            if not self._admit_one():
                self._events.admit_due = False
                return

    def _admit_one(self) -> bool:
        """Start the first admission that fits, or a copy that brings room for it; a failed check
        costs nobody a bypass. What may go on from an answer that is about to be kept waits for
        that, a cycle at most: a turn sent at once would read the whole conversation again."""
        alone = not self._scheduler.residents and not self._scheduler.paused
        for record in self._queue.candidates():
            if self._endings.awaited_by(record):
                return False
            short = self._bind(record, optional_only=True)
            if short is None or self._contexts.open:
                return True
            if alone:
                self._endings.stop(record, no_room(short))
                return True
        return False

    def _bind(self, record: RequestRecord, *, optional_only: bool) -> Shortfall | None:
        """Begin the bind of ``record`` or its end; or say what it lacks, with nothing begun."""
        lane = self._scheduler.free_lane
        if lane is None:
            return Shortfall("lanes", 1, 0)
        outcome, source = self._plan(record, lane, optional_only)
        if isinstance(outcome, Plan):
            self._contexts.bind(record, outcome, source)
        elif isinstance(outcome, NeverFits):
            self._endings.stop(record, never_fits(outcome))
        else:
            return outcome
        return None

    def _plan(
        self, record: RequestRecord, lane: int, optional_only: bool
    ) -> tuple[PlanOutcome, CheckpointRef | None]:
        relieve = self._pressure.reclaim if optional_only else self._pressure.relieve
        return self._resources.plan_bind(record, lane, partial(relieve, record))

    def _last_resort(self, record: RequestRecord, short: Shortfall | None) -> None:
        """Nobody is resident and it still does not fit: only its own Snapshot can be in the way."""
        while short is not None and self._pressure.revoke_own(record, short.axis):
            short = self._bind(record, optional_only=False)
        if short is not None and not self._contexts.open:
            self._endings.stop(record, no_room(short))


def never_fits(outcome: NeverFits) -> Infeasible:
    return Infeasible(
        f"the request needs {outcome.needed} {outcome.axis}; all there are is {outcome.capacity}",
        hint="shorten it or start with a larger --kv-capacity",
    )


def no_room(short: Shortfall) -> Infeasible:
    return Infeasible(
        f"no room for the request: it needs {short.needed} {short.axis}, "
        f"{short.available} are free and nothing else can make way",
        hint="shorten it or start with a larger --kv-capacity",
    )
