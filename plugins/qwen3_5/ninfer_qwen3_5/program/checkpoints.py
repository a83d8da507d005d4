"""Checkpoints: states and keys and values that later prompts can begin with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ninfer_core.contract.checkpoints import (
    Captured,
    CheckpointAction,
    CheckpointFacts,
    RestoreWork,
)
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.resources import PAGE_TOKENS, CheckpointRef, ResourceVector
from ninfer_core.store.demand import Demand, combine
from ninfer_core.store.handles import HandleTable
from ninfer_core.store.histories import History
from ninfer_core.store.logical_pages import LogicalPage, pages_for
from ninfer_core.store.reservations import Reservation
from ninfer_core.store.state_slots import Slot
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.program.checkpoint_faults import blamed_on_cache, require_sound
from ninfer_qwen3_5.program.checkpoint_records import Checkpoint
from ninfer_qwen3_5.program.checkpoint_replicas import Replicas
from ninfer_qwen3_5.program.host_tier import HostTier
from ninfer_qwen3_5.program.identity import ExecutedPrefix
from ninfer_qwen3_5.program.joint_pages import joint_holders
from ninfer_qwen3_5.program.rates import Rates
from ninfer_qwen3_5.program.sequence import Sequence
from ninfer_qwen3_5.program.stores import MAIN, Stores

_OWNER = "checkpoint"


class Checkpoints:
    """Makes, describes, hands out and deletes them. A stale reference is an EngineFailure."""

    def __init__(self, stores: Stores, state: ModelState, tier: HostTier | None = None) -> None:
        self._stores = stores
        self._state = state
        self._tier = tier
        self._rates = Rates() if tier is None else tier.rates
        self._replicas = Replicas(stores, tier)
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
        """Pages that :meth:`fork` draws, and those that a load before it does."""
        kept = self.get(ref)
        pages = self._stores.histories.fork_demand({MAIN: kept.frontier})
        if self._tier is None or not kept.alone:
            return pages
        return combine([pages, Demand({MAIN: self._tier.load_units(kept.history)})])

    def fork(
        self, ref: CheckpointRef, order: int, grant: Reservation, near: int
    ) -> tuple[History, Slot]:
        """The beginning of a sequence: full pages are shared, the partial last one and the state
        are copied. The copies are enqueued, and so precede whatever is launched after them."""
        kept = self.get(ref)
        if kept.slot is None:
            raise EngineFailure("a checkpoint on the host was adopted before it was loaded")
        slot = self._stores.slots.receive(order, grant, near=near)
        self._state.copy_slot(kept.slot.index, slot.index)
        return self.fork_pages(kept, order, grant), slot

    def fork_pages(self, kept: Checkpoint, order: int, grant: Reservation) -> History:
        """The same without the state: all pages lie on the device."""
        frontiers = {MAIN: kept.frontier}
        history, copies = self._stores.histories.fork(kept.history, frontiers, order, grant)
        for copy in copies:
            self._state.copy_page(copy.source, copy.target, copy.columns)
        return history

    def may_consume(self, ref: CheckpointRef) -> bool:
        """Whether it lies on the device and is held by nobody else, so that :meth:`consume` can
        turn it into a sequence."""
        kept = self.get(ref)
        held = kept.moving or kept.slot is None
        return kept.usable and not held and self._replicas.alone_in(kept)

    def consume_demand(self, ref: CheckpointRef) -> Demand:
        """Pages that :meth:`consume` draws."""
        history = self.get(ref).history
        return self._stores.histories.activation_demand(history, {MAIN: self.get(ref).frontier})

    def consume(
        self, ref: CheckpointRef, order: int, grant: Reservation, near: int
    ) -> tuple[History, Slot]:
        """The checkpoint itself as the beginning of a sequence: nothing is copied but a partial
        last page that somebody else needs further. :meth:`begin` then removes it."""
        kept = self.get(ref)
        if kept.slot is None or not self.may_consume(ref):
            raise EngineFailure("a checkpoint was consumed that others hold")
        pages = self._replicas.pages(kept)
        slot = self._stores.slots.move(kept.slot, order)
        at = {MAIN: kept.frontier}
        for copy in self._stores.histories.activate(kept.history, at, grant):
            self._state.copy_page(copy.source, copy.target, copy.columns)
        self._replicas.consumed(kept, pages)
        return kept.history, slot

    def begin(self, sequence: Sequence, ref: CheckpointRef) -> None:
        """Let a sequence over a fork of this checkpoint, or over itself, stand at its frontier."""
        kept = self.get(ref)
        sequence.frontier, sequence.origin = kept.frontier, kept.own
        sequence.trail = kept.trail.until(kept.frontier)
        if sequence.request.consume:
            self._table.remove(ref)

    def require_source(self, ref: CheckpointRef, prepared: PreparedPrompt) -> None:
        """Raise CacheFault unless ``prepared`` may begin with this checkpoint, which is whole."""
        with blamed_on_cache("a kept context that a prompt was to begin with"):
            kept = self.get(ref)
            if not (kept.usable and kept.prefix.begins(prepared)):
                raise EngineFailure("a prompt was to begin with a checkpoint of something else")
            require_sound(kept, self._stores)

    def restore_work(self, ref: CheckpointRef, prepared: PreparedPrompt) -> RestoreWork | None:
        """What an adoption would move; None where the prompt does not begin with it."""
        kept = self.get(ref)
        if not (kept.usable and kept.prefix.begins(prepared)):
            return None
        tail = self.tail_bytes(kept.frontier)
        loaded, pages = 0, 0
        if kept.alone and self._tier is not None:
            pages = self._tier.load_units(kept.history)
            loaded = self._tier.image_bytes(pages)
        copied = tail + (0 if kept.alone else self._stores.slots.pool.unit_bytes)
        return RestoreWork(
            bytes=loaded + copied,
            operations=1 + (tail > 0) + pages,
            tokens=prepared.length - kept.frontier,
            seconds=self._rates.seconds(loaded=loaded, copied=copied),
        )

    def moved_bytes(self, ref: CheckpointRef) -> int:
        """Bytes that :meth:`fork` copies: a state and the columns of a partial last page."""
        return self._stores.slots.pool.unit_bytes + self.tail_bytes(self.get(ref).frontier)

    def tail_bytes(self, frontier: int) -> int:
        """Bytes of the columns of a partial last page."""
        page = self._stores.context.ledger.pool(MAIN).unit_bytes
        return frontier % PAGE_TOKENS * page // PAGE_TOKENS

    def facts(self, ref: CheckpointRef) -> CheckpointFacts:
        kept, whole = self.get(ref), 0
        if self._tier is not None:
            whole = self._tier.image_bytes(pages_for(kept.frontier))
        return CheckpointFacts(
            frontier=kept.frontier,
            coverage={MAIN: kept.frontier},
            replicas=kept.tiers,
            recovery_frontier=self._recovery(kept),
            footprint=ResourceVector(state_slots=1, pages={MAIN: pages_for(kept.frontier)}),
            spans=kept.trail.spans(kept.frontier),
            restore_seconds=self._rates.seconds(loaded=whole, copied=0),
        )

    def actions(self, ref: CheckpointRef) -> Mapping[CheckpointAction, ResourceVector]:
        return self._replicas.actions(self.get(ref))

    def joint(self, axis: str) -> list[frozenset[CheckpointRef]]:
        """Groups that hold a page of the device together, in no order that means anything."""
        return joint_holders(list(self._table.items()), self._replicas) if axis == MAIN else []

    def drop(self, ref: CheckpointRef, action: CheckpointAction) -> ResourceVector:
        """Delete the checkpoint or one of its replicas; returns what became free."""
        freed = self._replicas.drop(self.get(ref), action)
        if action is CheckpointAction.DELETE:
            self._table.remove(ref)
        return freed

    def forget(self) -> list[tuple[CheckpointRef, Checkpoint]]:
        """Take all of them out but those that a transaction moves, which are returned. What they
        held is for the stores to give back."""
        left = []
        for ref, kept in list(self._table.items()):
            if kept.moving:
                left.append((ref, kept))
            else:
                self._table.remove(ref)
        return left

    def close(self) -> None:
        """Delete all of them."""
        for kept in self._table.values():
            self._replicas.release(kept)
        self._table = HandleTable("checkpoint", CheckpointRef)

    def held(self) -> Iterator[tuple[Iterable[LogicalPage], bool]]:
        """The pages of every checkpoint on the host, and whether it lies there alone."""
        on_host = (kept for kept in self._table.values() if kept.image is not None)
        return ((self._replicas.pages(kept), kept.alone) for kept in on_host)

    def check(self) -> None:
        """Raise StoreInvariantError if a replica is not whole."""
        self._table.check()
        for kept in self._table.values():
            require_sound(kept, self._stores)

    def _publish(self, sequence: Sequence, history: History, slot: Slot) -> Captured:
        frontier = sequence.frontier
        prefix = ExecutedPrefix.of(sequence.request.prepared, sequence.generated, frontier)
        trail = sequence.trail.until(frontier)
        ref = self._table.insert(Checkpoint(prefix, trail, history, slot, sequence.health))
        return Captured(ref, self.facts(ref))

    def _recovery(self, kept: Checkpoint) -> int:
        """The deepest frontier on the same path at which another one stands."""
        deepest, tokens = 0, kept.prefix.token_ids
        for other in self._table.values():
            at = other.frontier
            # Whole prefixes are compared only where their last tokens are alike.
            if deepest < at <= kept.frontier and tokens[at - 1] == other.prefix.token_ids[-1]:
                same = other is not kept and other.prefix.begins_prefix(kept.prefix)
                deepest = at if same and other.usable else deepest
        return deepest
