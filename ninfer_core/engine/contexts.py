"""The one open context transaction: begin, advance, adopt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ninfer_core.contract.checkpoints import (
    Aborted,
    Bound,
    Captured,
    ContextResult,
    Demoted,
    Paused,
    Plan,
    PlanKind,
    ResumeKind,
    SequencePhase,
    Transaction,
)
from ninfer_core.contract.errors import EngineFailure, Infeasible
from ninfer_core.contract.events import GenerationStart
from ninfer_core.contract.program import Program
from ninfer_core.contract.resources import CheckpointRef
from ninfer_core.engine.capacity_events import CapacityEvents
from ninfer_core.engine.endings import Endings
from ninfer_core.engine.metrics import Metrics
from ninfer_core.engine.queue import TicketQueue
from ninfer_core.engine.reclaiming import Demotion
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.resource_manager import ResourceManager
from ninfer_core.engine.scheduler import Scheduler
from ninfer_core.engine.states import RequestState, Transitions

_BIND_ATTEMPTS = 3
_STATE_OF_PHASE = {
    SequencePhase.PREFILL: RequestState.PREFILL,
    SequencePhase.REPLAY: RequestState.REPLAY,
    SequencePhase.DECODE: RequestState.DECODE_READY,
    SequencePhase.CONTROL: RequestState.CONTROL_READY,
}


@dataclass(frozen=True, slots=True)
class OpenContext:
    """``record`` is None for a demotion, whose checkpoint is ``source``."""

    transaction: Transaction
    record: RequestRecord | None
    source: CheckpointRef | None


class ContextDriver:
    """Runs context transactions, one at a time, and adopts their results as they come."""

    def __init__(
        self,
        program: Program,
        scheduler: Scheduler,
        queue: TicketQueue,
        resources: ResourceManager,
        transitions: Transitions,
        events: CapacityEvents,
        endings: Endings,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._program = program
        self._scheduler = scheduler
        self._queue = queue
        self._resources = resources
        self._transitions = transitions
        self._events = events
        self._endings = endings
        self._metrics = metrics
        self._clock = clock
        self.current: OpenContext | None = None
        endings.revoke = self.revoke
        endings.capturing = self.moves

    @property
    def open(self) -> bool:
        return self.current is not None

    def bind(self, record: RequestRecord, plan: Plan, source: CheckpointRef | None) -> None:
        """Start making a waiting or paused request resident; adopt at once if it is that fast."""
        (self._scheduler.unpark if record.resume is not None else self._queue.remove)(record)
        self._scheduler.enter(record)
        self._transitions.move(record, RequestState.MATERIALIZING)
        self._begin(record, plan, source)

    def pause(self, record: RequestRecord, plan: Plan) -> None:
        record.before_pause = record.state
        self._transitions.move(record, RequestState.PAUSING)
        self._begin(record, plan, None)

    def capture(self, record: RequestRecord, plan: Plan) -> None:
        """Start to keep the restore point ``record.capture``, at which the request stands."""
        self._begin(record, plan, None)

    def demote(self, demotion: Demotion) -> None:
        """Start to copy a checkpoint to the host; behind that it leaves the device."""
        self._begin(None, demotion.plan, demotion.ref)

    def moves(self, record: RequestRecord) -> bool:
        """Whether the open transaction is one of ``record``."""
        return self.current is not None and self.current.record is record

    def revoke(self, record: RequestRecord) -> None:
        """Ask the transaction of ``record`` to undo itself; its result is adopted as usual."""
        if self.current is not None and self.moves(record):
            self.current.transaction.cancel()

    def advance(self) -> None:
        """Move the open transaction on; adopt its result when it has one."""
        if self.current is None:
            return
        result = self.current.transaction.advance()
        if result is not None:
            self._adopt(self.current, result)

    def _begin(
        self, record: RequestRecord | None, plan: Plan, source: CheckpointRef | None
    ) -> None:
        if self.current is not None:
            raise EngineFailure("a second context transaction was begun")
        self._resources.lease(source)
        self.current = OpenContext(self._program.begin(plan), record, source)
        self.advance()

    def _adopt(self, context: OpenContext, result: ContextResult) -> None:
        self.current = None
        self._resources.lease(None)
        record = context.record
        if record is None:
            self._demoted(result, context.source)
        else:
            self._take(record, context, result)
        self._resources.settled(result.retired if isinstance(result, Bound | Aborted) else ())
        self._events.changed()
        doomed = None if record is None else record.asked_to_stop(self._clock())
        if record is not None and doomed is not None:
            self._endings.request(record, doomed)

    def _take(self, record: RequestRecord, context: OpenContext, result: ContextResult) -> None:
        """What the transaction of a request brought."""
        kind = context.transaction.kind
        if isinstance(result, Bound) and kind is PlanKind.BIND:
            self._bound(record, result, context.source)
        elif isinstance(result, Captured) and kind is PlanKind.CAPTURE:
            self._captured(record, result)
        elif isinstance(result, Paused) and kind is PlanKind.PAUSE:
            self._paused(record, result)
        elif isinstance(result, Aborted):
            self._undone(record, result, context.source)
        else:
            raise EngineFailure(f"a {kind.value} ended in {type(result).__name__}")

    def _demoted(self, result: ContextResult, ref: CheckpointRef | None) -> None:
        if isinstance(result, Demoted):
            self._resources.demoted(result)
        elif isinstance(result, Aborted) and ref is not None:
            self._resources.reclaimer.stays(ref)
        else:
            raise EngineFailure(f"a demotion ended in {type(result).__name__}")

    def _bound(self, record: RequestRecord, bound: Bound, source: CheckpointRef | None) -> None:
        record.sequence = bound.sequence
        record.bind_aborts = 0
        if record.resume is not None:
            self._resumed(record, bound)
        else:
            self._admitted(record, bound, source)
        state = _STATE_OF_PHASE[bound.phase]
        if state is RequestState.DECODE_READY and record.forced:
            state = RequestState.CONTROL_READY
        self._transitions.move(record, state)

    def _admitted(self, record: RequestRecord, bound: Bound, source: CheckpointRef | None) -> None:
        watch = record.watch
        watch.bound = self._clock()
        watch.cached_tokens = bound.reused_tokens
        watch.reuse_reason = bound.reuse_reason
        watch.restored_bytes += bound.moved_bytes
        record.started = True
        self._resources.admitted(record, source)
        self._queue.overtake(record)
        self._metrics.admitted(record)
        record.response.put(
            GenerationStart(
                prompt_tokens=record.prompt_tokens,
                reused_tokens=bound.reused_tokens,
                reuse_reason=watch.reuse_reason,
                notes=record.notes,
                reuse_point=watch.reuse_point,
                reuse_tier=watch.reuse_tier,
                restored_bytes=bound.moved_bytes,
            )
        )

    def _resumed(self, record: RequestRecord, bound: Bound) -> None:
        replayed = record.resume is not None and record.resume.kind is ResumeKind.REPLAY
        record.resume = None
        record.watch.replays += replayed
        record.watch.restores += not replayed
        record.watch.restored_bytes += bound.moved_bytes
        self._metrics.resumed(replayed, bound.moved_bytes)
        self._scheduler.protect(record)

    def _captured(self, record: RequestRecord, captured: Captured) -> None:
        point, record.capture = record.capture, None
        if point is None:
            raise EngineFailure("a capture ended that nobody had begun")
        self._resources.captured(record, point, captured)

    def _paused(self, record: RequestRecord, paused: Paused) -> None:
        record.resume = paused.resume
        record.sequence = None
        record.watch.pauses += 1
        self._metrics.paused()
        self._scheduler.leave(record)
        self._scheduler.park(record)
        self._transitions.move(record, RequestState.PAUSED)

    def _undone(self, record: RequestRecord, result: Aborted, source: CheckpointRef | None) -> None:
        if record.capture is not None:
            record.capture = None
            return
        if record.state is RequestState.PAUSING:
            assert record.before_pause is not None
            record.pause_aborts += 1
            self._transitions.move(record, record.before_pause)
            return
        self._scheduler.leave(record)
        if record.resume is not None:
            self._transitions.move(record, RequestState.PAUSED)
            self._scheduler.park(record)
        else:
            self._transitions.move(record, RequestState.WAITING)
            self._queue.push(record)
        if source is not None:
            record.refused_sources.add(source)
        else:
            self._count_abort(record, result.reason)

    def _count_abort(self, record: RequestRecord, reason: str) -> None:
        """Bound tries: a Snapshot that does not come back becomes a Replay, anything else ends."""
        record.bind_aborts += 1
        if record.bind_aborts < _BIND_ATTEMPTS:
            return
        if record.resume is not None and record.resume.kind is ResumeKind.SNAPSHOT:
            record.resume, record.bind_aborts = self._program.revoke(record.resume), 0
            return
        error = Infeasible(
            f"the request could not be made resident in {_BIND_ATTEMPTS} attempts: {reason}"
        )
        self._endings.request(record, error)
