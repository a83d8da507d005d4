"""The host tier: one pinned arena, and the extents in it that hold pages and state images."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.ops.table import Ops
from ninfer_core.store.demand import Demand
from ninfer_core.store.histories import History, HistoryLease
from ninfer_core.store.host_arena import Extent, HostArena
from ninfer_core.store.logical_pages import LogicalPage, PagePin
from ninfer_core.store.page_records import off_host
from ninfer_core.store.reservations import Reservation
from ninfer_core.store.units import Unit
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.program.host_holders import HostHolders
from ninfer_qwen3_5.program.layout import StateSizes
from ninfer_qwen3_5.program.rates import Rates, measured
from ninfer_qwen3_5.program.stores import MAIN, Stores
from ninfer_qwen3_5.program.transfers import Transfer, Transfers

if TYPE_CHECKING:
    from ninfer_core.device.base import Device


class HostTier:
    """Places of images on the host and the copies that fill and read them.

    A page has at most one host extent, whoever shares it, so that what one snapshot saved the next
    one need not. Extents are charged from the reservation that a transaction holds; they change
    hands when the copy has landed, and go with the last holder of their page.
    """

    def __init__(self, stores: Stores, transfers: Transfers, rates: Rates) -> None:
        self.transfers = transfers
        self.rates = rates
        self._stores = stores
        self._arena = stores.context.arena
        self._replicas = stores.context.replicas[MAIN]
        self._spaces = stores.context.spaces[MAIN]
        self.holders = HostHolders()

    def lease(self, history: History, frontier: int) -> HistoryLease:
        """Keep the pages below ``frontier`` as they are while copies read or replace them."""
        return self._stores.histories.lease(history, {MAIN: frontier})

    def pages(self, history: History) -> tuple[LogicalPage, ...]:
        return self._spaces.directory(history.spaces[MAIN])

    def save_demand(self, history: History, frontier: int) -> Demand:
        """Host extents for a state image and for the pages that no host replica covers yet."""
        missing = len(off_host(self.pages(history), frontier))
        slot, page = map(
            self._arena.rounded, (self.transfers.slot_bytes, self.transfers.page_bytes)
        )
        return Demand(host_extents=(slot, *[page] * missing))

    def save(self, slot: int, lease: HistoryLease, grant: Reservation) -> Transfer:
        """Enqueue the copy of a slot and of the leased pages that lack a host replica, into the
        extents that ``grant`` still holds."""
        pages = [_unit_of(pin.page).index for pin in _off_host(lease)]
        return self.transfers.save(slot, pages, grant.extents)

    def rely(self, lease: HistoryLease) -> SavedLease:
        """Keep the leased pages that lie on the host already there while the others are saved."""
        pins = lease.spaces[MAIN].pins
        return SavedLease(self, [pin.page for pin in pins if pin.page.on_host(pin.columns)])

    def publish_saved(
        self, lease: HistoryLease, saved: SavedLease, grant: Reservation, most: int
    ) -> bool:
        """The save has landed, and the caller has drawn the extent of the state image: up to
        ``most`` pages own theirs, and are ``saved`` while there are more. Whether none are left."""
        pins = _off_host(lease)
        some = pins[:most]
        self._replicas.publish_hosts(some, grant.draw_extents(len(some)))
        if len(some) < len(pins):
            saved.add([pin.page for pin in some])
        return len(some) == len(pins)

    def trim(self, most: int | None = None) -> int:
        """Free device pages that nobody needs who has a part on the device, at most so many: those
        that somebody else needed when they were saved. Says how many."""
        return self._replicas.drop_idle(self.holders.idle()[:most])

    def drop_device(self, pages: Iterable[LogicalPage]) -> int:
        """The same of some pages."""
        deserted = self.holders.deserted
        return self._replicas.drop_idle([p for p in pages if p.alive and deserted(p)])

    def load_units(self, history: History) -> int:
        """Device units that :meth:`receive` takes."""
        return sum(page.device is None for page in self.pages(history))

    def image_bytes(self, pages: int) -> int:
        """Bytes that the load of a state image and so many pages moves."""
        return self.transfers.slot_bytes + pages * self.transfers.page_bytes

    def receive(self, lease: HistoryLease, grant: Reservation) -> list[Unit]:
        """Destinations of the leased pages that do not lie on the device."""
        return self._replicas.receive_many(grant, len(_off_device(lease)))

    def load(self, slot: int, image: Extent, lease: HistoryLease, units: Rows[Unit]) -> Transfer:
        """Enqueue the copy of a state image and of the leased pages into ``units``."""
        extents = [image, *(_extent_of(pin.page) for pin in _off_device(lease))]
        return self.transfers.load(slot, [unit.index for unit in units], extents)

    def publish_loaded(self, lease: HistoryLease, units: Rows[Unit]) -> None:
        """The load of the first leased pages that do not lie on the device has landed: they own
        their ``units``."""
        pins = _off_device(lease)[: len(units)]
        self._replicas.publish_devices(pins, units)
        self.holders.arrived(pin.page for pin in pins)

    def discard(self, units: Iterable[Unit]) -> None:
        """The load was given up; nothing is on its way into ``units``."""
        self._replicas.discard_many(tuple(units))

    def drop_host(self, pages: Iterable[LogicalPage]) -> None:
        """Free the host extents of live pages on the device that no holder keeps."""
        keeps = self.holders.keeps
        self._replicas.drop_spare([p for p in pages if p.host is not None and not keeps(p)])

    def free(self, image: Extent) -> None:
        """Give the extent of a state image back. Refused while a copy reads it."""
        self._arena.free(image)

    def pin(self, image: Extent) -> ImageLease:
        """Keep the extent of a state image while a copy reads it."""
        return ImageLease(self._arena, image)

    def freed_bytes(self, history: History, image: Extent) -> int:
        """Host bytes that the release of both would give back, if nobody had leased the pages."""
        own = [page.host for page in self.pages(history) if page.refs == 1]
        return image.size + sum([replica.location.size for replica in own if replica is not None])


class SavedLease:
    """Keeps pages on the host until it is released, once."""

    __slots__ = ("_pages", "_tier")

    def __init__(self, tier: HostTier, pages: list[LogicalPage]) -> None:
        self._tier = tier
        self._pages: list[LogicalPage] = []
        self.add(pages)

    def add(self, pages: list[LogicalPage]) -> None:
        """Keep these as well."""
        self._tier.holders.rely(pages)
        self._pages += pages

    def release(self) -> None:
        self._tier.holders.relied(self._pages)
        self._tier.drop_host(self._pages)


class ImageLease:
    """Keeps the extent of a state image until it is released, once."""

    __slots__ = ("_arena", "_image")

    def __init__(self, arena: HostArena, image: Extent) -> None:
        arena.pin(image)
        self._arena, self._image = arena, image

    def release(self) -> None:
        self._arena.unpin(self._image)


def open_host_tier(
    ops: Ops, state: ModelState, device: Device, stores: Stores, sizes: StateSizes, columns: int
) -> HostTier | None:
    """The tier over the host bytes of ``stores``; None where it has none.

    Allocates the pinned arena. ``columns`` are the most pages of one sequence. Raises DeviceError
    when the host lacks the memory, EngineFailure if the tensors are not what ``sizes`` says.
    """
    size = stores.context.arena.capacity
    if not size:
        return None
    import torch

    host = device.pinned("host_tier", size).take("images", (size,), torch.uint8)
    transfers = Transfers(ops, state, device, host, columns)
    if (transfers.page_bytes, transfers.slot_bytes) != (sizes.page, sizes.slot):
        raise EngineFailure(
            f"images of {transfers.page_bytes} and {transfers.slot_bytes} bytes where the layout "
            f"has {sizes.page} and {sizes.slot}"
        )
    return HostTier(stores, transfers, measured(transfers, state, stores.slots.scratch))


def _off_host(lease: HistoryLease) -> list[PagePin]:
    return [
        pin
        for pin in lease.spaces[MAIN].pins
        if pin.page.host is None or not pin.page.on_host(pin.columns)
    ]


def _off_device(lease: HistoryLease) -> list[PagePin]:
    return [pin for pin in lease.spaces[MAIN].pins if pin.page.device is None]


def _unit_of(page: LogicalPage) -> Unit:
    if page.device is None:
        raise EngineFailure(f"page {page.generation} does not lie on the device")
    return page.device.location


def _extent_of(page: LogicalPage) -> Extent:
    if page.host is None:
        raise EngineFailure(f"page {page.generation} does not lie on the host")
    return page.host.location
