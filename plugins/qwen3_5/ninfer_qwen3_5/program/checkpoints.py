"""Checkpoints on the device: states and keys and values that later prompts can begin with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ninfer_core.contract.checkpoints import (
    Captured,
    CheckpointAction,
    CheckpointFacts,
    RestoreWork,
    Tier,
)
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.resources import PAGE_TOKENS, CheckpointRef, ResourceVector
from ninfer_core.store.demand import Demand
from ninfer_core.store.handles import HandleTable
from ninfer_core.store.histories import History
from ninfer_core.store.logical_pages import pages_for
from ninfer_core.store.reservations import Reservation
from ninfer_core.store.state_slots import Slot
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.program.identity import ExecutedPrefix
from ninfer_qwen3_5.program.provenance import Trail
from ninfer_qwen3_5.program.sequence import Health, Sequence
from ninfer_qwen3_5.program.stores import MAIN, STATE, Stores, vector

_OWNER = "checkpoint"


@dataclass(slots=True)
class Checkpoint:
    """One restore point: what was executed, how, and where its outcome lies.

    ``slot`` is published and ``history`` frozen, so that neither is written again. ``source`` is
    the health of the sequence that it was made of, ``own`` turns bad when an adopter of it breaks.
    """

    prefix: ExecutedPrefix
    trail: Trail
    history: History
    slot: Slot
    source: Health
    own: Health = field(default_factory=Health)

    @property
    def frontier(self) -> int:
        return self.prefix.frontier

    @property
    def usable(self) -> bool:
        return not (self.source.broken or self.own.broken)


class Checkpoints:
    """Makes, describes, hands out and deletes them. A stale reference is an EngineFailure."""

    def __init__(self, stores: Stores, state: ModelState) -> None:
        self._stores = stores
        self._state = state
        self._table: HandleTable[Checkpoint, CheckpointRef] = HandleTable(
            "checkpoint", CheckpointRef
        )

    def __len__(self) -> int:
        return len(self._table)

    def get(self, ref: CheckpointRef) -> Checkpoint:
        return self._table.get(ref)

    def freeze(self, sequence: Sequence) -> Captured:
        """Turn a sequence into the checkpoint of its end. What it held beyond that, but its
        execution row, is given back."""
        slots, kept = self._stores.slots, sequence.slot
        self._stores.histories.freeze(sequence.history)
        for slot in sequence.ring:
            if slot is not kept:
                slots.release(slot)
        slots.freeze(kept, sequence.order)
        return self._publish(sequence, sequence.history, kept)

    def capture(self, sequence: Sequence, grant: Reservation) -> Captured:
        """A checkpoint at the frontier of a sequence that goes on: its state in a slot of
        ``grant``, its pages shared. The sequence appends to the partial last page behind what the
        checkpoint holds of it, so no page is copied."""
        slot = self._stores.slots.receive(_OWNER, grant, near=self._stores.lane_slots)
        self._state.copy_slot(sequence.slot.index, slot.index)
        self._stores.slots.freeze(slot, _OWNER)
        frontiers = {MAIN: sequence.frontier}
        history = self._stores.histories.share(sequence.history, frontiers, _OWNER)
        return self._publish(sequence, history, slot)

    def fork_demand(self, ref: CheckpointRef) -> Demand:
        """Pages that :meth:`fork` draws."""
        return self._stores.histories.fork_demand({MAIN: self.get(ref).frontier})

    def fork(
        self, ref: CheckpointRef, order: int, grant: Reservation, near: int
    ) -> tuple[History, Slot]:
        """The beginning of a sequence: full pages are shared, the partial last one and the state
        are copied. The copies are enqueued, and so precede whatever is launched after them."""
        stores, kept = self._stores, self.get(ref)
        slot = stores.slots.receive(order, grant, near=near)
        self._state.copy_slot(kept.slot.index, slot.index)
        frontiers = {MAIN: kept.frontier}
        history, copies = stores.histories.fork(kept.history, frontiers, order, grant)
        for copy in copies:
            self._state.copy_page(copy.source, copy.target, copy.columns)
        return history, slot

    def begin(self, sequence: Sequence, ref: CheckpointRef) -> None:
        """Let a sequence over a fork of this checkpoint stand at its frontier."""
        kept = self.get(ref)
        sequence.frontier, sequence.origin = kept.frontier, kept.own
        sequence.trail = kept.trail.until(kept.frontier)

    def require_source(self, ref: CheckpointRef, prepared: PreparedPrompt) -> None:
        """Raise EngineFailure unless ``prepared`` may begin with this checkpoint."""
        kept = self.get(ref)
        if not (kept.usable and kept.prefix.begins(prepared)):
            raise EngineFailure("a prompt was to begin with a checkpoint of something else")

    def restore_work(self, ref: CheckpointRef, prepared: PreparedPrompt) -> RestoreWork | None:
        """What :meth:`fork` would move; None where the prompt does not begin with it."""
        kept = self.get(ref)
        if not (kept.usable and kept.prefix.begins(prepared)):
            return None
        tail = kept.frontier % PAGE_TOKENS
        return RestoreWork(
            bytes=self.moved_bytes(kept.frontier),
            operations=1 + (tail > 0),
            tokens=prepared.length - kept.frontier,
        )

    def moved_bytes(self, frontier: int) -> int:
        """Bytes of a state and of the columns of a partial last page."""
        page = self._stores.context.ledger.pool(MAIN).unit_bytes
        tail = frontier % PAGE_TOKENS
        return self._stores.slots.pool.unit_bytes + tail * page // PAGE_TOKENS

    def facts(self, ref: CheckpointRef) -> CheckpointFacts:
        kept = self.get(ref)
        return CheckpointFacts(
            frontier=kept.frontier,
            coverage={MAIN: kept.frontier},
            replicas=frozenset({Tier.DEVICE}),
            recovery_frontier=self._recovery(kept),
            footprint=ResourceVector(state_slots=1, pages={MAIN: pages_for(kept.frontier)}),
            spans=kept.trail.spans(kept.frontier),
        )

    def actions(self, ref: CheckpointRef) -> Mapping[CheckpointAction, ResourceVector]:
        kept = self.get(ref)
        pages = self._stores.context.spaces[MAIN].footprint(kept.history.spaces[MAIN]).units
        slots = int(self._stores.slots.may_move(kept.slot))
        return {CheckpointAction.DELETE: vector(Demand({STATE: slots, MAIN: pages}))}

    def drop(self, ref: CheckpointRef, action: CheckpointAction) -> ResourceVector:
        """Delete the checkpoint; returns what became free."""
        if action is not CheckpointAction.DELETE:
            raise EngineFailure(f"{action.value} is not among the actions of a checkpoint")
        freed = self.actions(ref)[action]
        self._release(self._table.remove(ref))
        return freed

    def close(self) -> None:
        """Delete all of them."""
        for kept in self._table.values():
            self._release(kept)
        self._table = HandleTable("checkpoint", CheckpointRef)

    def check(self) -> None:
        self._table.check()

    def _publish(self, sequence: Sequence, history: History, slot: Slot) -> Captured:
        frontier = sequence.frontier
        prefix = ExecutedPrefix.of(sequence.request.prepared, sequence.generated, frontier)
        trail = sequence.trail.until(frontier)
        ref = self._table.insert(Checkpoint(prefix, trail, history, slot, sequence.health))
        return Captured(ref, self.facts(ref))

    def _release(self, kept: Checkpoint) -> None:
        self._stores.histories.release(kept.history)
        self._stores.slots.release(kept.slot)

    def _recovery(self, kept: Checkpoint) -> int:
        """The deepest frontier on the same path at which another one stands."""
        shorter = (
            other.frontier
            for other in self._table.values()
            if other is not kept and other.usable and other.prefix.begins_prefix(kept.prefix)
        )
        return max(shorter, default=0)
