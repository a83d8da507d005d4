"""Context transactions: bind a sequence to its stores, or pause it for a later replay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ninfer_core.contract.checkpoints import (
    Aborted,
    BindRequest,
    Bound,
    Captured,
    ContextResult,
    Paused,
    Plan,
    PlanKind,
    ResumeKind,
    ResumeState,
    Transaction,
)
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import (
    CheckpointRef,
    NeverFits,
    ProgramLimits,
    SequenceHandle,
    Shortfall,
)
from ninfer_core.store.demand import Demand
from ninfer_core.store.handles import Handle, HandleTable
from ninfer_core.store.reservations import Reservation
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.program.binding import Binder
from ninfer_qwen3_5.program.checkpoint_records import CaptureOf
from ninfer_qwen3_5.program.checkpoints import Checkpoints
from ninfer_qwen3_5.program.copying import Mover
from ninfer_qwen3_5.program.demoting import Demoting, DemotionOf
from ninfer_qwen3_5.program.host_tier import HostTier
from ninfer_qwen3_5.program.immediate import ImmediateTransaction
from ninfer_qwen3_5.program.reach import Reach
from ninfer_qwen3_5.program.restoring import Restoring
from ninfer_qwen3_5.program.sequence import Sequence
from ninfer_qwen3_5.program.snapshots import SnapshotOf, Snapshots, is_snapshot
from ninfer_qwen3_5.program.stores import MAIN, STATE, Stores, vector
from ninfer_qwen3_5.program.units import Units


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
        limits: ProgramLimits,
        reach: Reach,
        keeps: bool = False,
        host: HostTier | None = None,
    ) -> None:
        self._stores = stores
        self._state = state
        self._units = units
        self._tier = host
        self._mover = Mover(stores)
        self.checkpoints = Checkpoints(stores, state, host)
        self._binder = Binder(stores, state, self.checkpoints, limits, reach, keeps)
        self._open = False
        self.sequences: HandleTable[Sequence, SequenceHandle] = HandleTable(
            "sequence", SequenceHandle
        )
        self._paused: HandleTable[Sequence, Handle] = HandleTable("paused", Handle)
        self.snapshots = (
            None if host is None else Snapshots(host, self._mover, stores, state, units, self)
        )

    def limit_chunk(self, tokens: int) -> None:
        """Prompts are read in chunks of at most ``tokens`` from now on."""
        self._binder.chunk = tokens

    def begin(self, plan: Plan) -> Transaction:
        """Open the planned transaction. Raises EngineFailure while another one is open."""
        if self._open:
            raise EngineFailure("a context transaction began while another one was open")
        plan.consume()
        transaction = self._copying(plan.detail) or ImmediateTransaction(
            plan.kind, self._work(plan.detail), self._end
        )
        self._open = True
        return transaction

    def _copying(self, detail: object) -> Transaction | None:
        """The transaction of a plan whose copies must be waited for."""
        if isinstance(detail, SnapshotOf):
            return self._host_tier().pause(detail.sequence, self._end)
        if self._tier is not None and isinstance(detail, DemotionOf):
            slots = self._stores.slots
            demoting = Demoting(self.checkpoints, self._tier, slots, detail.checkpoint)
            return self._mover.open(demoting, self._end)
        if not isinstance(detail, BindRequest):
            return None
        if is_snapshot(detail.source):
            return self._host_tier().resume(detail, self._end)
        source = detail.source
        if self._tier is None or not isinstance(source, CheckpointRef):
            return None
        if not self.checkpoints.get(source).alone:
            return None
        restoring = Restoring(
            self._binder,
            self.checkpoints,
            self._tier,
            self._stores,
            self._units,
            self.sequences,
            detail,
        )
        return self._mover.open(restoring, self._end)

    def _work(self, detail: object) -> Callable[[], ContextResult]:
        """What is done at once."""
        if isinstance(detail, BindRequest):
            return partial(self._bind, detail)
        if isinstance(detail, SequenceHandle):
            return partial(self._pause, detail)
        if isinstance(detail, CaptureOf):
            return partial(self._capture, detail.sequence)
        raise EngineFailure("a plan of another program was begun")

    def new_order(self) -> int:
        """A number that no binding had before."""
        return self._binder.new_order()

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
            self._binder.takes_part(sequence.request)
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

    def check(self) -> None:
        """Raise StoreInvariantError if a checkpoint or snapshot is not whole where it lies."""
        self._mover.check()
        self.checkpoints.check()
        if self._tier is not None and self.snapshots is not None:
            self.snapshots.table.check()
            self._tier.holders.check([*self.snapshots.held(), *self.checkpoints.held()])

    def close(self) -> None:
        """Release every sequence, whatever holds it, and every checkpoint; handles given out before
        are stale then."""
        self._mover.close()
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

    def plan_demote(self, ref: CheckpointRef) -> Plan | Shortfall | NeverFits:
        """The plan to copy a checkpoint to the host."""
        kept = self.checkpoints.get(ref)
        if self._tier is None or kept.image is not None or not kept.usable:
            return NeverFits("host_bytes", 1, 0)
        demand = self._tier.save_demand(kept.history, kept.frontier)
        refusal = self._stores.refusal(demand)
        return refusal or Plan(PlanKind.DEMOTE, vector(demand), DemotionOf(ref))

    def bind_demand(self, request: BindRequest) -> Demand:
        """The state slots; for a resume every page up to the end of its first new unit, for a
        checkpoint what its adoption draws."""
        if is_snapshot(request.source):
            return self._host_tier().resume_demand(request)
        return self._binder.demand(request, self._reach(request))

    def _bind(self, request: BindRequest) -> ContextResult:
        reach = self._reach(request)
        grant = self._stores.reserve(self.bind_demand(request))
        if not isinstance(grant, Reservation):
            return Aborted(f"{grant.axis} ran out between plan and start")
        source, moved = request.source, 0
        if isinstance(source, CheckpointRef) and not request.consume:
            moved = self.checkpoints.moved_bytes(source)
        sequence = self._binder.create(request, grant)
        if isinstance(source, ResumeState):
            sequence.follow(self._paused.remove(source))
            sequence.reach = reach
            self._stores.histories.ensure_mapped(sequence.history, {MAIN: reach}, grant)
        elif source is not None:
            self.checkpoints.begin(sequence, source)
        grant.settle()
        self._units.admit(sequence)
        consumed = isinstance(source, CheckpointRef) and request.consume
        return Bound(
            sequence=self.sequences.insert(sequence),
            phase=sequence.phase,
            reused_tokens=sequence.frontier,
            reuse_reason=request.source_reason,
            moved_bytes=moved,
            retired=(source,) if consumed and isinstance(source, CheckpointRef) else (),
        )

    def _reach(self, request: BindRequest) -> int:
        """Tokens that a resume must hold from the start; 0 for a sequence from root."""
        if not isinstance(request.source, ResumeState):
            return 0
        return self.reach_from(request, self._paused.get(request.source).reached)

    def reach_from(self, request: BindRequest, frontier: int) -> int:
        return self._binder.reach_from(request, frontier)

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
