"""The engine core: what one worker thread owns, and the cycle it runs."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from ninfer_core.contract.cache import CachePolicy
from ninfer_core.contract.engine import AvailabilityState, EngineStats, MemorySummary
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.instance import ModelInstance
from ninfer_core.contract.program import Program
from ninfer_core.engine.accounting import Accounting
from ninfer_core.engine.admission import Admission
from ninfer_core.engine.capacity_events import CapacityEvents
from ninfer_core.engine.captures import CaptureDesk
from ninfer_core.engine.cleanup import Cleanup
from ninfer_core.engine.contexts import ContextDriver
from ninfer_core.engine.endings import Endings
from ninfer_core.engine.intake import Intake
from ninfer_core.engine.lifecycle import Lifecycle, Submit
from ninfer_core.engine.metrics import Metrics
from ninfer_core.engine.opened import itself
from ninfer_core.engine.outstanding import OutstandingGate
from ninfer_core.engine.permits import PermitDesk, PermittedUnits
from ninfer_core.engine.pressure import Pressure
from ninfer_core.engine.publication import Publisher
from ninfer_core.engine.queue import TicketQueue
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.resource_manager import ResourceManager
from ninfer_core.engine.round_timings import CycleTimes, RoundTiming, RoundTimings
from ninfer_core.engine.scheduler import Scheduler
from ninfer_core.engine.states import Transitions
from ninfer_core.engine.units import UnitRunner

_log: Final = logging.getLogger("ninfer.engine")

_TRANSACTION_POLL = 0.001
"""Seconds between two looks at a context transaction that nothing else runs beside."""


class Activity(enum.Enum):
    """What a cycle left behind: more to do at once, a transaction to look at again, or nothing."""

    BUSY = "busy"
    TRANSFERRING = "transferring"
    IDLE = "idle"
    STOPPED = "stopped"


class EngineCore:
    """Request lifecycle of one Program. Everything but construction runs on one thread.

    ``step`` runs one cycle and turns whatever it raises into the end of the engine; ``run`` steps
    until then and sleeps on the inbox in between. Tests step without a thread.
    """

    def __init__(
        self,
        program: Program,
        policy: CachePolicy,
        lifecycle: Lifecycle,
        gate: OutstandingGate,
        clock: Callable[[], float] = time.monotonic,
        explain: Callable[[BaseException], BaseException] = itself,
    ) -> None:
        lanes = program.limits.max_concurrency
        self.program = program
        self._explain = explain
        self.lifecycle = lifecycle
        self.gate = gate
        self.transitions = transitions = Transitions()
        self.events = events = CapacityEvents()
        self.metrics = metrics = Metrics()
        self.scheduler = scheduler = Scheduler(lanes)
        self.queue = queue = TicketQueue(reach=lanes)
        self.resources = resources = ResourceManager(program, policy, metrics)
        self.endings = endings = Endings(
            program, scheduler, queue, resources, transitions, events, metrics, clock, self._ended,
            lifecycle.released,
        )  # fmt: skip
        self.contexts = contexts = ContextDriver(
            program, scheduler, queue, resources, transitions, events, endings, metrics, clock
        )
        self.captures = CaptureDesk(scheduler, resources, contexts)
        self.pressure = pressure = Pressure(program, scheduler, resources, contexts)
        self.admission = Admission(scheduler, queue, resources, contexts, pressure, endings, events)
        self.permits = PermitDesk(program, scheduler, pressure, endings, clock)
        self.units = UnitRunner(program, scheduler, self.permits)
        accounting = Accounting(scheduler, transitions, metrics, clock)
        self.times = CycleTimes()
        self.rounds = RoundTimings()
        self.publisher = Publisher(
            program, accounting, endings, clock, self.times, self.captures.reached
        )
        program.before_results(self.rehearse)
        self.intake = Intake(lifecycle, queue, endings, events, metrics, clock)
        self.cleanup = Cleanup(program, resources, contexts, self.units, transitions)
        self.stopped = False

    def cycle(self) -> bool:
        """One worker cycle; True when it changed anything or ran a unit."""
        started, edges = perf_counter_ns(), self.transitions.count
        arrived = self.intake.take_in()
        self._move_on()
        permitted = self.permits.collect(behind=self.units.round)
        self.admission.admit_fresh()
        launching = perf_counter_ns()
        flights = self.units.launch(permitted)
        self.units.finish()
        arrived += self._while_device_works(permitted)
        settling = perf_counter_ns()
        for flight in flights:
            self.publisher.settle(flight)
            self.units.settled(flight)
        self.units.finish()
        settled = perf_counter_ns()
        self.endings.settle()
        self._book_time(started, launching, settling, settled)
        return bool(flights) or arrived > 0 or self.transitions.count != edges

    def rehearse(self) -> None:
        """While a round is waited for: go through what comes behind it, and change nothing but what
        the caches hold when it ends."""
        self.publisher.rehearse()
        if not self._anything_due():
            self._move_on()
            self.admission.admit_fresh()
        if self.units.round is not None:
            self.permits.rehearse(self.units.round)

    def step(self) -> Activity:
        """Run one cycle. A failure ends the engine and every request in it."""
        if self.stopped:
            return Activity.STOPPED
        try:
            busy = self.cycle()
            if self.intake.stop_asked:
                self._shut(AvailabilityState.CLOSED, None)
                return Activity.STOPPED
            return Activity.BUSY if busy else self._rest()
        except Exception as error:
            self.fail(error)
            return Activity.STOPPED

    def run(self) -> None:
        """Step until the engine is closed or has failed. Never spins."""
        try:
            while (activity := self.step()) is not Activity.STOPPED:
                if activity is not Activity.BUSY:
                    self.lifecycle.wait(self._patience(activity))
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the engine because ``error`` left it in a state that cannot be trusted."""
        if self.stopped:
            return
        error = self._explain(error)
        failure = EngineFailure(f"{type(error).__name__}: {error}")
        if isinstance(error, EngineFailure):
            failure = EngineFailure(error.message)
        failure.__cause__ = error
        _log.critical("the engine failed and ends every request", exc_info=failure)
        self._shut(AvailabilityState.FAILED, failure)

    def stats(self) -> EngineStats:
        return self.metrics.stats(
            self.scheduler, len(self.queue), self.gate.count, len(self.resources)
        )

    def round_timings(self) -> tuple[RoundTiming, ...]:
        """Host time of the latest decode rounds, oldest first. From any thread."""
        return self.rounds.snapshot()

    def start_afresh(self) -> str:
        """Worker only. Set the counters back and return "", or say what is still held."""
        capacity = self.program.capacity()
        held = {
            "requests": len(self.intake.open),
            "lanes": len(self.scheduler.residents),
            "units": len(self.units.flights),
            "checkpoints": len(self.resources),
            "state slots": capacity.total.state_slots - capacity.available.state_slots,
            "pages": sum(capacity.total.pages.values()) - sum(capacity.available.pages.values()),
        }
        if any(held.values()):
            return ", ".join(f"{count} {name}" for name, count in held.items() if count)
        self.metrics.reset()
        self.rounds.reset()
        return ""

    def memory(self, instance: ModelInstance) -> MemorySummary:
        """Worker only: the Program answers nobody else."""
        capacity = self.program.capacity()
        return MemorySummary(
            bytes=instance.memory(),
            pages_total=capacity.total.pages,
            pages_free=capacity.available.pages,
            state_slots_total=capacity.total.state_slots,
            state_slots_free=capacity.available.state_slots,
            kept_slots=capacity.kept.state_slots,
            kept_pages=sum(capacity.kept.pages.values()),
        )

    def _anything_due(self) -> bool:
        """Whether anything besides units can move: otherwise to look for it changes nothing."""
        events = self.events
        return (
            self.contexts.open
            or self.endings.due
            or bool(self.captures.waiting)
            or events.resume_due
            or events.admit_due
        )

    def _move_on(self) -> None:
        """What moves without a unit: a transaction, ends, captures, a resume."""
        self.contexts.advance()
        self.endings.stop_requested()
        self.endings.settle()
        self.captures.begin()
        self.admission.resume_oldest()

    def _while_device_works(self, permitted: PermittedUnits) -> int:
        """What needs no result of the running units: taking in what has arrived, and enqueueing the
        next decode round behind the present one. That stays in flight until the next cycle."""
        if not self.units.flights:
            return 0
        arrived = self.intake.take_in()
        self.units.launch_ahead(permitted)
        return arrived

    def _book_time(self, started: int, launching: int, settling: int, settled: int) -> None:
        """Keep the times of a cycle that settled a decode round."""
        if self.times.rows:
            engine = launching - started + perf_counter_ns() - settled
            self.rounds.add(self.times, engine, settling - launching, settled - settling)
        if self.times.units:
            self.times.reset()

    def _rest(self) -> Activity:
        """Nothing moved. Raises EngineFailure when requests are open that nothing can move."""
        if self.contexts.open:
            return Activity.TRANSFERRING
        if self.intake.open:
            raise EngineFailure(f"{len(self.intake.open)} requests are open and none can go on")
        return Activity.IDLE

    def _patience(self, activity: Activity) -> float | None:
        if activity is Activity.TRANSFERRING:
            return _TRANSACTION_POLL
        return self.intake.seconds_to_deadline()

    def _ended(self, record: RequestRecord) -> None:
        self.intake.forget(record, holding=record.flying > 0)

    def _shut(self, state: AvailabilityState, failure: EngineFailure | None) -> None:
        """Refuse what comes, release what is held, then complete every response."""
        self.stopped = True
        self.lifecycle.shut(state, str(failure) if failure else None)
        records = list(self.intake.open.values())
        ended = [record for record in self.scheduler.residents if record.response.done]
        self.cleanup.release_all([*ended, *records])
        self.cleanup.complete([*ended, *records], failure)
        for trouble in self.cleanup.troubles:
            _log.error("the engine could not be cleaned up whole", exc_info=trouble)
        for record in records:
            self.intake.forget(record)
        for _ in ended:
            self.lifecycle.released()
        while (message := self.lifecycle.take()) is not None:
            self.cleanup.refuse(message, failure)
            if isinstance(message, Submit):
                self.lifecycle.ended()
