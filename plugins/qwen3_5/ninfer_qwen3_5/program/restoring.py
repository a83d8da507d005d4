"""Beginning a sequence with a checkpoint that lies on the host (``copying.Copying``)."""

from __future__ import annotations

from ninfer_core.contract.checkpoints import BindRequest, Bound, ContextResult, PlanKind
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import CheckpointRef, SequenceHandle
from ninfer_core.store.demand import Demand
from ninfer_core.store.handles import HandleTable
from ninfer_core.store.histories import HistoryLease
from ninfer_core.store.logical_pages import LogicalPage
from ninfer_core.store.state_slots import Slot
from ninfer_core.store.units import Unit
from ninfer_qwen3_5.program.binding import Binder
from ninfer_qwen3_5.program.checkpoints import Checkpoints
from ninfer_qwen3_5.program.copying import StoreTransaction
from ninfer_qwen3_5.program.host_tier import HostTier
from ninfer_qwen3_5.program.sequence import Sequence
from ninfer_qwen3_5.program.stores import Stores
from ninfer_qwen3_5.program.transfers import Transfer
from ninfer_qwen3_5.program.units import Units


class Restoring:
    """The state goes straight into the sequence's slot, and so costs the checkpoint none; pages
    become replicas of the checkpoint's, which the sequence then shares. The checkpoint stays whole
    on the host."""

    kind = PlanKind.BIND

    def __init__(
        self,
        binder: Binder,
        checkpoints: Checkpoints,
        tier: HostTier,
        stores: Stores,
        units: Units,
        sequences: HandleTable[Sequence, SequenceHandle],
        request: BindRequest,
    ) -> None:
        assert isinstance(request.source, CheckpointRef)
        self._binder = binder
        self._checkpoints = checkpoints
        self._tier = tier
        self._stores = stores
        self._running = units
        self._sequences = sequences
        self._request = request
        self._ref = request.source
        self._kept = checkpoints.get(request.source)
        self._order = binder.new_order()
        self._lease: HistoryLease | None = None
        self._transfer: Transfer | None = None
        self._row: int | None = None
        self._ring: list[Slot] = []
        self._units: list[Unit] = []
        self._spare: list[LogicalPage] = []

    def demand(self) -> Demand:
        if not self._kept.usable:
            raise EngineFailure("a prompt was to begin with a checkpoint that is broken")
        return self._binder.demand(self._request, 0)

    def start(self, transaction: StoreTransaction) -> Transfer:
        tier, kept, grant = self._tier, self._kept, transaction.reservation
        assert kept.image is not None
        self._lease = tier.lease(kept.history, kept.frontier)
        transaction.lease(self._lease)
        transaction.lease(tier.pin(kept.image))
        kept.moving = True
        row = self._row = self._stores.take_row()
        self._ring.append(self._stores.slots.receive(self._order, grant, near=row))
        self._ring += self._binder.spares(self._order, grant, row)
        self._units = tier.receive(self._lease, grant)
        self._transfer = tier.load(self._ring[0].index, kept.image, self._lease, self._units)
        return self._transfer

    def take_in(self, transaction: StoreTransaction, most: int) -> bool:
        assert self._lease is not None
        some, self._units = self._units[:most], self._units[most:]
        self._tier.publish_loaded(self._lease, some)
        return not self._units

    def publish(self, transaction: StoreTransaction) -> ContextResult:
        tier, kept, transfer, row = self._tier, self._kept, self._transfer, self._row
        assert self._lease is not None
        assert transfer is not None
        assert row is not None
        kept.moving = False
        self._spare = [pin.page for pin in self._lease.spaces["main"].pins]
        transfer.hold_back(tier.transfers.compute)
        history = self._checkpoints.fork_pages(kept, self._order, transaction.reservation)
        ring = tuple(self._ring)
        sequence = self._binder.assembled(self._request, self._order, history, ring, row)
        self._checkpoints.begin(sequence, self._ref)
        self._running.admit(sequence)
        bound = Bound(
            sequence=self._sequences.insert(sequence),
            phase=sequence.phase,
            reused_tokens=sequence.frontier,
            reuse_reason=self._request.source_reason,
            moved_bytes=transfer.bytes + self._checkpoints.tail_bytes(kept.frontier),
        )
        return transaction.complete(bound)

    def clear(self, most: int) -> bool:
        """Pages that the sequence replaced by its own."""
        some, self._spare = self._spare[:most], self._spare[most:]
        self._tier.drop_device(some)
        return not self._spare

    def undo(self) -> None:
        units, ring, row = self._units, self._ring, self._row
        self._units, self._ring, self._row = [], [], None
        self._kept.moving = False
        self._tier.discard(units)
        for slot in ring:
            self._stores.slots.release(slot)
        if row is not None:
            self._stores.give_row(row)
