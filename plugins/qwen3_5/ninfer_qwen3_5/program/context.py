"""Context transactions: bind a sequence to its stores, or pause it for a later replay."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ninfer_core.contract.checkpoints import (
    Aborted,
    BindRequest,
    Bound,
    Captured,
    ContextResult,
    Paused,
    Plan,
    ResumeKind,
    ResumeState,
    Transaction,
)
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.requests import CacheMode
from ninfer_core.contract.resources import (
    CheckpointRef,
    NeverFits,
    SequenceHandle,
    Shortfall,
)
from ninfer_core.store.demand import Demand, combine
from ninfer_core.store.handles import Handle, HandleTable
from ninfer_core.store.histories import History
from ninfer_core.store.logical_pages import pages_for
from ninfer_core.store.reservations import Reservation
from ninfer_core.store.state_slots import Slot
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.program.checkpoints import Checkpoints
from ninfer_qwen3_5.program.host_tier import HostTier
from ninfer_qwen3_5.program.immediate import ImmediateTransaction
from ninfer_qwen3_5.program.sequence import Sequence, next_split
from ninfer_qwen3_5.program.snapshots import SnapshotOf, Snapshots, is_snapshot
from ninfer_qwen3_5.program.stores import MAIN, STATE, Stores
from ninfer_qwen3_5.program.units import Units


@dataclass(frozen=True, slots=True)
class CaptureOf:
    """The plan to make a checkpoint of a resident sequence."""

    sequence: SequenceHandle


class Contexts:
    """Installs and removes sequences; at most one transaction is open.

    ``keeps`` says that checkpoints are made at all: without it, prompts are cut into chunks as if
    they had no restore points. Without a ``host`` tier a pause is always a replay.
    """

    def __init__(
        self,
        stores: Stores,
        state: ModelState,
        units: Units,
        chunk: int,
        keeps: bool = False,
        host: HostTier | None = None,
    ) -> None:
        self._stores = stores
        self._chunk = chunk
        self._keeps = keeps
        self.checkpoints = Checkpoints(stores, state)
        self._state = state
        self._units = units
        self._open = False
        self._orders = itertools.count(1)
        self.sequences: HandleTable[Sequence, SequenceHandle] = HandleTable(
            "sequence", SequenceHandle
        )
        self._paused: HandleTable[Sequence, Handle] = HandleTable("paused", Handle)
        self.snapshots = None if host is None else Snapshots(host, stores, state, units, self)

    def begin(self, plan: Plan) -> Transaction:
        """Open the planned transaction. Raises EngineFailure while another one is open."""
        if self._open:
            raise EngineFailure("a context transaction began while another one was open")
        plan.consume()
        detail = plan.detail
        work: Callable[[], ContextResult]
        if isinstance(detail, SnapshotOf):
            self._open = True
            return self._host_tier().pause(detail.sequence, self._end)
        if isinstance(detail, BindRequest) and is_snapshot(detail.source):
            self._open = True
            return self._host_tier().resume(detail, self._end)
        if isinstance(detail, BindRequest):
            work = partial(self._bind, detail)
        elif isinstance(detail, SequenceHandle):
            work = partial(self._pause, detail)
        elif isinstance(detail, CaptureOf):
            work = partial(self._capture, detail.sequence)
        else:
            raise EngineFailure("a plan of another program was begun")
        self._open = True
        return ImmediateTransaction(plan.kind, work, self._end)

    def new_order(self) -> int:
        """A number that no binding had before."""
        return next(self._orders)

    def discard(self, resume: ResumeState) -> None:
        if is_snapshot(resume):
            self._host_tier().release(resume)
        else:
            self._paused.remove(resume)

    def revoke(self, resume: ResumeState) -> ResumeState:
        """A snapshot becomes a replay and gives up what it held; a replay is one already."""
        if is_snapshot(resume):
            return self._park(self._host_tier().release(resume))
        self._paused.get(resume)
        return resume

    def plan_snapshot(self, handle: SequenceHandle) -> Plan | Shortfall | NeverFits:
        """The plan to pause a resident sequence in no unit by copying it to the host."""
        if self.snapshots is None:
            return NeverFits("host_bytes", 1, 0)
        return self.snapshots.plan_pause(handle)

    def remove(self, handle: SequenceHandle) -> Demand:
        """Release everything a resident sequence holds; returns how much that was."""
        sequence = self.sequences.get(handle)
        if sequence.busy:
            raise EngineFailure("a sequence was ended while a unit held it")
        before = self._stores.context.occupancy()[MAIN].available
        self._release(sequence)
        self.sequences.remove(handle)
        freed = self._stores.context.occupancy()[MAIN].available - before
        return Demand({MAIN: freed, STATE: self._stores.slots_per_sequence})

    def may_keep(self, sequence: Sequence) -> bool:
        """Whether its frontier may become a checkpoint."""
        return (
            self._takes_part(sequence.request)
            and sequence.frontier > 0
            and not sequence.health.broken
        )

    def keep(self, handle: SequenceHandle) -> Captured:
        """End a resident sequence; the checkpoint of its end takes its place."""
        sequence = self.sequences.get(handle)
        if sequence.busy:
            raise EngineFailure("a sequence was ended while a unit held it")
        captured = self.checkpoints.freeze(sequence)
        self._stores.give_row(sequence.row)
        self.sequences.remove(handle)
        return captured

    def close(self) -> None:
        """Release every sequence, whatever holds it, and every checkpoint; handles given out before
        are stale then."""
        if self.snapshots is not None:
            self.snapshots.close()
        self.checkpoints.close()
        for sequence in self.sequences.values():
            self._release(sequence)
        self.sequences = HandleTable("sequence", SequenceHandle)
        self._paused = HandleTable("paused", Handle)
        self._open = False

    def _release(self, sequence: Sequence) -> None:
        self._stores.histories.release(sequence.history)
        for slot in sequence.ring:
            self._stores.slots.release(slot)
        self._stores.give_row(sequence.row)

    def _end(self) -> None:
        self._open = False

    def _host_tier(self) -> Snapshots:
        if self.snapshots is None:
            raise EngineFailure("a snapshot came to a program without a host tier")
        return self.snapshots

    def bind_demand(self, request: BindRequest) -> Demand:
        """The state slots; for a resume every page up to the end of its first new unit, for a
        checkpoint the page that its partial last one is copied to."""
        if is_snapshot(request.source):
            return self._host_tier().resume_demand(request)
        slots = Demand({STATE: self._stores.slots_per_sequence})
        if isinstance(request.source, CheckpointRef):
            return combine([slots, self.checkpoints.fork_demand(request.source)])
        return combine([slots, Demand({MAIN: pages_for(self._reach(request))})])

    def _bind(self, request: BindRequest) -> ContextResult:
        reach = self._reach(request)
        grant = self._stores.reserve(self.bind_demand(request))
        if not isinstance(grant, Reservation):
            return Aborted(f"{grant.axis} ran out between plan and start")
        sequence = self._create(request, grant)
        if isinstance(request.source, ResumeState):
            sequence.follow(self._paused.remove(request.source))
            sequence.reach = reach
            self._stores.histories.ensure_mapped(sequence.history, {MAIN: reach}, grant)
        grant.settle()
        self._units.admit(sequence)
        adopted = isinstance(request.source, CheckpointRef)
        return Bound(
            sequence=self.sequences.insert(sequence),
            phase=sequence.phase,
            reused_tokens=sequence.frontier,
            reuse_reason=request.source_reason,
            moved_bytes=self.checkpoints.moved_bytes(sequence.frontier) if adopted else 0,
        )

    def _reach(self, request: BindRequest) -> int:
        """Tokens that a resume must hold from the start; 0 for a sequence from root."""
        if not isinstance(request.source, ResumeState):
            return 0
        return self.reach_from(request, self._paused.get(request.source).reached)

    def reach_from(self, request: BindRequest, frontier: int) -> int:
        """The end of the first new unit of a resume that executed ``frontier`` tokens before."""
        if frontier >= request.prepared.length:
            return frontier + 1
        return next_split(frontier, self._chunk, request.prepared.length, *self._points(request))

    def _create(self, request: BindRequest, grant: Reservation) -> Sequence:
        order, row = next(self._orders), self._stores.take_row()
        history, slot = self._beginning(request.source, order, grant, row)
        turns = range(1, self._stores.slots_per_sequence)
        spares = [self._receive(order, grant, self._stores.rows * turn + row) for turn in turns]
        self._stores.histories.bind_row(history, row)
        sequence = Sequence(request, order, history, (slot, *spares), row)
        sequence.points = self._points(request)
        if isinstance(request.source, CheckpointRef):
            self.checkpoints.begin(sequence, request.source)
        return sequence

    def _beginning(
        self, source: object, order: int, grant: Reservation, row: int
    ) -> tuple[History, Slot]:
        """Pages and state of a new sequence: a checkpoint's, or none and the initial one."""
        if isinstance(source, CheckpointRef):
            return self.checkpoints.fork(source, order, grant, near=row)
        slot, clear = self._stores.slots.create(order, grant, near=row)
        self._state.clear_slot(clear.slot)
        return self._stores.histories.create(order), slot

    def _receive(self, order: int, grant: Reservation, near: int) -> Slot:
        return self._stores.slots.receive(order, grant, near=near)

    def _takes_part(self, request: BindRequest) -> bool:
        return self._keeps and request.prepared.request.cache.mode is CacheMode.READ_WRITE

    def _points(self, request: BindRequest) -> tuple[int, ...]:
        """Where the prompt's chunks end besides the regular places."""
        if not self._takes_part(request):
            return ()
        return tuple(point.frontier for point in request.prepared.restore_points)

    def _capture(self, handle: SequenceHandle) -> ContextResult:
        sequence = self.sequences.get(handle)
        if sequence.busy:
            raise EngineFailure("a sequence was captured while a unit held it")
        grant = self._stores.reserve(Demand({STATE: 1}))
        if not isinstance(grant, Reservation):
            return Aborted(f"{grant.axis} ran out between plan and start")
        captured = self.checkpoints.capture(sequence, grant)
        grant.settle()
        return captured

    def _pause(self, handle: SequenceHandle) -> ContextResult:
        sequence = self.sequences.get(handle)
        self.remove(handle)
        return Paused(self._park(sequence))

    def _park(self, sequence: Sequence) -> ResumeState:
        """Keep the record of a sequence, which holds nothing any more, for its replay."""
        made, kind = self._paused.insert(sequence), ResumeKind.REPLAY
        return ResumeState(
            made.owner,
            made.index,
            made.generation,
            kind,
            sequence.reached,
            sequence.ledger_length,
        )
