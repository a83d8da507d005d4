"""Moving one sequence into a snapshot, and one snapshot into a sequence (``copying.Copying``)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ninfer_core.contract.checkpoints import (
    BindRequest,
    Bound,
    ContextResult,
    Paused,
    PlanKind,
    ResumeState,
)
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import SequenceHandle
from ninfer_core.store.demand import Demand
from ninfer_core.store.histories import HistoryLease
from ninfer_core.store.host_arena import Extent
from ninfer_core.store.logical_pages import LogicalPage
from ninfer_core.store.state_slots import Slot
from ninfer_core.store.units import Unit
from ninfer_qwen3_5.program.copying import StoreTransaction
from ninfer_qwen3_5.program.host_tier import SavedLease
from ninfer_qwen3_5.program.sequence import Sequence
from ninfer_qwen3_5.program.stores import MAIN
from ninfer_qwen3_5.program.transfers import Transfer

if TYPE_CHECKING:
    from ninfer_qwen3_5.program.snapshots import Snapshots


class Pausing:
    """A resident sequence on its way to the host. Until the copies have landed it stays as it is;
    being in no unit, it is not written meanwhile."""

    kind = PlanKind.PAUSE

    def __init__(self, snapshots: Snapshots, handle: SequenceHandle) -> None:
        self._own = snapshots
        self._handle = handle
        self._sequence = snapshots.residents.sequences.get(handle)
        self._lease: HistoryLease | None = None
        self._saved: SavedLease | None = None
        self._image: Extent | None = None
        self._moved = 0

    def demand(self) -> Demand:
        if self._sequence.busy:
            raise EngineFailure("a sequence was paused while a unit held it")
        return self._own.pause_demand(self._sequence)

    def start(self, transaction: StoreTransaction) -> Transfer:
        sequence, tier = self._sequence, self._own.tier
        self._lease = tier.lease(sequence.history, sequence.frontier)
        transaction.lease(self._lease)
        self._saved = tier.rely(self._lease)
        transaction.lease(self._saved)
        transfer = tier.save(sequence.slot.index, self._lease, transaction.reservation)
        self._moved = transfer.bytes
        return transfer

    def take_in(self, transaction: StoreTransaction, most: int) -> bool:
        grant = transaction.reservation
        assert self._lease is not None
        assert self._saved is not None
        self._image = self._image or grant.draw_extent()
        return self._own.tier.publish_saved(self._lease, self._saved, grant, most)

    def publish(self, transaction: StoreTransaction) -> ContextResult:
        own, sequence = self._own, self._sequence
        assert self._image is not None
        own.residents.sequences.remove(self._handle)
        own.stores.histories.freeze(sequence.history)
        for slot in sequence.ring:
            own.stores.slots.release(slot)
        own.stores.give_row(sequence.row)
        resume = own.keep(sequence, self._image)
        return transaction.complete(Paused(resume, self._moved))

    def clear(self, most: int) -> bool:
        return self._own.tier.trim(most) < most

    def undo(self) -> None:
        """The sequence was never touched, and extents go back with the reservation or, of pages
        that were taken in, with the lease."""
        if self._image is not None:
            self._own.tier.free(self._image)
            self._image = None


class Resuming:
    """A snapshot on its way back to the device; it stays whole on the host until it is there."""

    kind = PlanKind.BIND

    def __init__(self, snapshots: Snapshots, request: BindRequest) -> None:
        self._own = snapshots
        self._request = request
        self._kept = snapshots.get(request.source)
        self._order = snapshots.residents.new_order()
        self._lease: HistoryLease | None = None
        self._transfer: Transfer | None = None
        self._row: int | None = None
        self._ring: list[Slot] = []
        self._units: list[Unit] = []
        self._spare: list[LogicalPage] = []

    def demand(self) -> Demand:
        return self._own.resume_demand(self._request)

    def start(self, transaction: StoreTransaction) -> Transfer:
        own, kept, grant = self._own, self._kept, transaction.reservation
        stores = own.stores
        self._lease = own.tier.lease(kept.sequence.history, kept.sequence.frontier)
        transaction.lease(self._lease)
        row = self._row = stores.take_row()
        for turn in range(stores.slots_per_sequence):
            near = stores.rows * turn + row
            self._ring.append(stores.slots.receive(self._order, grant, near=near))
        self._units = own.tier.receive(self._lease, grant)
        slot = self._ring[0].index
        self._transfer = own.tier.load(slot, kept.image, self._lease, self._units)
        return self._transfer

    def take_in(self, transaction: StoreTransaction, most: int) -> bool:
        assert self._lease is not None
        some, self._units = self._units[:most], self._units[most:]
        self._own.tier.publish_loaded(self._lease, some)
        return not self._units

    def publish(self, transaction: StoreTransaction) -> ContextResult:
        own, transfer = self._own, self._transfer
        assert transfer is not None
        transfer.hold_back(own.tier.transfers.compute)
        pages = own.tier.pages(self._kept.sequence.history)
        sequence = self._activated(transaction)
        own.units.admit(sequence)
        bound = Bound(
            sequence=own.residents.sequences.insert(sequence),
            phase=sequence.phase,
            reused_tokens=sequence.frontier,
            reuse_reason=self._request.source_reason,
            moved_bytes=transfer.bytes,
        )
        result = transaction.complete(bound)
        own.resumed(_paused(self._request), pages)
        self._spare = list(pages)
        return result

    def clear(self, most: int) -> bool:
        some, self._spare = self._spare[:most], self._spare[most:]
        self._own.tier.drop_host(some)
        return not self._spare

    def undo(self) -> None:
        own, units, ring, row = self._own, self._units, self._ring, self._row
        self._units, self._ring, self._row = [], [], None
        own.tier.discard(units)
        for slot in ring:
            own.stores.slots.release(slot)
        if row is not None:
            own.stores.give_row(row)

    def _activated(self, transaction: StoreTransaction) -> Sequence:
        """The sequence again, its history growing from the frontier on."""
        own, past, grant = self._own, self._kept.sequence, transaction.reservation
        histories, row = own.stores.histories, self._row
        assert row is not None
        for copy in histories.activate(past.history, {MAIN: past.frontier}, grant):
            own.state.copy_page(copy.source, copy.target, copy.columns)
        reach = own.residents.reach_from(self._request, self._kept.reached)
        histories.ensure_mapped(past.history, {MAIN: reach}, grant)
        histories.bind_row(past.history, row)
        return replace(
            past,
            request=self._request,
            order=self._order,
            ring=tuple(self._ring),
            row=row,
            turn=0,
            reach=reach,
            room=0,
        )


def _paused(request: BindRequest) -> ResumeState:
    assert isinstance(request.source, ResumeState)
    return request.source
