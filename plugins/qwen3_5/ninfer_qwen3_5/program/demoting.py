"""Copying one checkpoint to the host (``copying.Copying``)."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_core.contract.checkpoints import ContextResult, Demoted, PlanKind
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import CheckpointRef
from ninfer_core.store.demand import Demand
from ninfer_core.store.histories import HistoryLease
from ninfer_core.store.host_arena import Extent
from ninfer_core.store.state_slots import Slot, StateSlots
from ninfer_qwen3_5.program.checkpoints import Checkpoints
from ninfer_qwen3_5.program.copying import StoreTransaction
from ninfer_qwen3_5.program.host_tier import HostTier, SavedLease
from ninfer_qwen3_5.program.transfers import Transfer


@dataclass(frozen=True, slots=True)
class DemotionOf:
    """The plan to copy a checkpoint to the host."""

    checkpoint: CheckpointRef


class SlotLease:
    """Keeps a published state image while a copy reads it."""

    __slots__ = ("_slot", "_slots")

    def __init__(self, slots: StateSlots, slot: Slot) -> None:
        slots.pin(slot)
        self._slots, self._slot = slots, slot

    def release(self) -> None:
        self._slots.unpin(self._slot)


class Demoting:
    """A checkpoint on its way to the host. Until the copies have landed it stays as it is, and
    prompts may begin with it."""

    kind = PlanKind.DEMOTE

    def __init__(
        self, checkpoints: Checkpoints, tier: HostTier, slots: StateSlots, ref: CheckpointRef
    ) -> None:
        self._checkpoints = checkpoints
        self._tier = tier
        self._slots = slots
        self._ref = ref
        self._kept = checkpoints.get(ref)
        self._lease: HistoryLease | None = None
        self._saved: SavedLease | None = None
        self._image: Extent | None = None
        self._moved = 0

    def demand(self) -> Demand:
        kept = self._kept
        if kept.image is not None or not kept.usable:
            raise EngineFailure("a checkpoint was demoted that lies on the host or may not be kept")
        return self._tier.save_demand(kept.history, kept.frontier)

    def start(self, transaction: StoreTransaction) -> Transfer:
        kept = self._kept
        assert kept.slot is not None
        self._lease = self._tier.lease(kept.history, kept.frontier)
        transaction.lease(self._lease)
        self._saved = self._tier.rely(self._lease)
        transaction.lease(self._saved)
        transaction.lease(SlotLease(self._slots, kept.slot))
        kept.moving = True
        transfer = self._tier.save(kept.slot.index, self._lease, transaction.reservation)
        self._moved = transfer.bytes
        return transfer

    def take_in(self, transaction: StoreTransaction, most: int) -> bool:
        grant = transaction.reservation
        assert self._lease is not None
        assert self._saved is not None
        self._image = self._image or grant.draw_extent()
        return self._tier.publish_saved(self._lease, self._saved, grant, most)

    def publish(self, transaction: StoreTransaction) -> ContextResult:
        kept, tier = self._kept, self._tier
        kept.moving = False
        kept.image = self._image
        tier.holders.hold(tier.pages(kept.history), alone=False)
        facts = self._checkpoints.facts(self._ref)
        return transaction.complete(Demoted(self._ref, facts, self._moved))

    def clear(self, most: int) -> bool:
        """The checkpoint stays on the device until somebody drops it there."""
        return True

    def undo(self) -> None:
        """The checkpoint was never touched, and extents go back with the reservation or, of pages
        that were taken in, with the lease."""
        self._kept.moving = False
        if self._image is not None:
            self._tier.free(self._image)
            self._image = None
