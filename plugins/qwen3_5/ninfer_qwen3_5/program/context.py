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
    ContextResult,
    Paused,
    Plan,
    PlanKind,
    ResumeKind,
    ResumeState,
)
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import SequenceHandle
from ninfer_core.store.demand import Demand
from ninfer_core.store.handles import Handle, HandleTable
from ninfer_core.store.logical_pages import pages_for
from ninfer_core.store.reservations import Reservation
from ninfer_core.store.state_slots import Slot
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.program.sequence import Sequence, next_split
from ninfer_qwen3_5.program.stores import MAIN, STATE, Stores
from ninfer_qwen3_5.program.units import Units


@dataclass(frozen=True, slots=True)
class PausedSequence:
    """What a replay needs: the request, what it generated, and the frontier it had."""

    request: BindRequest
    generated: tuple[int, ...]
    frontier: int


class ImmediateTransaction:
    """A context transaction whose work is done at its first ``advance``."""

    def __init__(
        self, kind: PlanKind, work: Callable[[], ContextResult], ended: Callable[[], None]
    ) -> None:
        self.kind = kind
        self._work: Callable[[], ContextResult] | None = work
        self._ended = ended

    def advance(self) -> ContextResult:
        """The result, once."""
        if self._work is None:
            raise EngineFailure(f"a {self.kind.value} transaction was advanced past its result")
        work, self._work = self._work, None
        try:
            return work()
        finally:
            self._ended()

    def cancel(self) -> None:
        """Before the first ``advance``: the result becomes Aborted. Afterwards nothing is open."""
        if self._work is not None:
            kind = self.kind.value
            self._work = lambda: Aborted(f"the {kind} was cancelled before it started")


class Contexts:
    """Installs and removes sequences; at most one transaction is open."""

    def __init__(self, stores: Stores, state: ModelState, units: Units, chunk: int) -> None:
        self._stores = stores
        self._chunk = chunk
        self._state = state
        self._units = units
        self._open = False
        self._orders = itertools.count(1)
        self.sequences: HandleTable[Sequence, SequenceHandle] = HandleTable(
            "sequence", SequenceHandle
        )
        self._paused: HandleTable[PausedSequence, Handle] = HandleTable("paused", Handle)

    def begin(self, plan: Plan) -> ImmediateTransaction:
        """Open the planned transaction. Raises EngineFailure while another one is open."""
        if self._open:
            raise EngineFailure("a context transaction began while another one was open")
        plan.consume()
        detail = plan.detail
        work: Callable[[], ContextResult]
        if isinstance(detail, BindRequest):
            work = partial(self._bind, detail)
        elif isinstance(detail, SequenceHandle):
            work = partial(self._pause, detail)
        else:
            raise EngineFailure("a plan of another program was begun")
        self._open = True
        return ImmediateTransaction(plan.kind, work, self._end)

    def discard(self, resume: ResumeState) -> None:
        self._paused.remove(resume)

    def require_paused(self, resume: ResumeState) -> None:
        self._paused.get(resume)

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

    def close(self) -> None:
        """Release every sequence, whatever holds it; handles given out before are stale then."""
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

    def bind_demand(self, request: BindRequest) -> Demand:
        """The state slots, and for a resume every page up to the end of its first new unit."""
        pages = pages_for(self._reach(request))
        return Demand({STATE: self._stores.slots_per_sequence, MAIN: pages})

    def _bind(self, request: BindRequest) -> ContextResult:
        reach = self._reach(request)
        grant = self._stores.reserve(self.bind_demand(request))
        if not isinstance(grant, Reservation):
            return Aborted(f"{grant.axis} ran out between plan and start")
        sequence = self._create(request, grant)
        if isinstance(request.source, ResumeState):
            past = self._paused.remove(request.source)
            sequence.generated = list(past.generated)
            sequence.replay_to, sequence.reach = past.frontier, reach
            self._stores.histories.ensure_mapped(sequence.history, {MAIN: reach}, grant)
        grant.settle()
        self._units.admit(sequence)
        return Bound(
            sequence=self.sequences.insert(sequence),
            phase=sequence.phase,
            reused_tokens=0,
            reuse_reason=request.source_reason,
        )

    def _reach(self, request: BindRequest) -> int:
        """Tokens that a resume must hold from the start; 0 for a sequence from root."""
        if request.source is None:
            return 0
        if not isinstance(request.source, ResumeState):
            raise EngineFailure(f"no checkpoint stands behind {request.source}")
        frontier = self._paused.get(request.source).frontier
        if frontier >= request.prepared.length:
            return frontier + 1
        return next_split(frontier, self._chunk, request.prepared.length)

    def _create(self, request: BindRequest, grant: Reservation) -> Sequence:
        order = next(self._orders)
        history = self._stores.histories.create(order)
        row = self._stores.take_row()
        slot, clear = self._stores.slots.create(order, grant, near=row)
        self._state.clear_slot(clear.slot)
        turns = range(1, self._stores.slots_per_sequence)
        spares = [self._receive(order, grant, self._stores.rows * turn + row) for turn in turns]
        self._stores.histories.bind_row(history, row)
        return Sequence(request, order, history, (slot, *spares), row)

    def _receive(self, order: int, grant: Reservation, near: int) -> Slot:
        return self._stores.slots.receive(order, grant, near=near)

    def _pause(self, handle: SequenceHandle) -> ContextResult:
        sequence = self.sequences.get(handle)
        ledger = sequence.ledger_length
        frontier = max(sequence.frontier, sequence.replay_to)
        past = PausedSequence(sequence.request, tuple(sequence.generated), frontier)
        self.remove(handle)
        made = self._paused.insert(past)
        return Paused(_replay_state(made, frontier, ledger))


def _replay_state(made: Handle, frontier: int, ledger: int) -> ResumeState:
    return ResumeState(made.owner, made.index, made.generation, ResumeKind.REPLAY, frontier, ledger)
