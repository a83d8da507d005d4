"""Where a logical page's content lies: adding and dropping device and host replicas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ninfer_core.store.errors import ProtectedRangeError, StaleHandleError, TransitionError
from ninfer_core.store.host_arena import Extent, HostArena
from ninfer_core.store.logical_pages import LogicalPage, LogicalPages, PagePin, Replica
from ninfer_core.store.reservations import Reservation
from ninfer_core.store.units import Unit


class Replicas:
    """Moves replicas in and out of the records of one pool.

    A copy runs under a pin; publishing the copy under that pin is what makes it valid, since the
    pin kept the copied columns unchanged. A replica may be dropped only while the other one
    covers everything that is still needed.
    """

    def __init__(self, pages: LogicalPages, arena: HostArena) -> None:
        self._pages = pages
        self._arena = arena

    def receive(self, grant: Reservation) -> Unit:
        """A unit as the destination of a restore: publish or discard it."""
        return self.receive_many(grant, 1)[0]

    def receive_many(self, grant: Reservation, count: int) -> list[Unit]:
        """The same, so many times."""
        units = grant.draw_many(self._pages.pool.name, count)
        self._pages.incoming.update(units)
        return units

    def discard(self, unit: Unit) -> None:
        """The restore into ``unit`` was given up; no copy writes it any more."""
        self.discard_many((unit,))

    def discard_many(self, units: Collection[Unit]) -> None:
        """The same of many."""
        for unit in units:
            self._take_incoming(unit)
        self._pages.pool.release_many(units)

    def publish_device(self, pin: PagePin, unit: Unit) -> None:
        """The pinned columns now also lie in the received ``unit``; the page owns it."""
        page = self._pinned(pin)
        if page.device is not None:
            raise TransitionError(f"page {page.generation} is already on the device")
        self._take_incoming(unit)
        page.device = Replica(unit, page.epoch, pin.columns)

    def publish_host(self, pin: PagePin, extent: Extent) -> None:
        """The pinned columns now also lie in ``extent``; the page owns it."""
        page = self._pinned(pin)
        if page.host is not None and page.host.coverage >= pin.columns:
            raise TransitionError(f"the host replica already covers {page.host.coverage} columns")
        self._arena.validate(extent)
        if page.host is not None:
            self._arena.free(page.host.location)
        page.host = Replica(extent, page.epoch, pin.columns)

    def publish_hosts(self, pins: Sequence[PagePin], extents: Sequence[Extent]) -> None:
        """:meth:`publish_host` of each pair."""
        for pin, extent in zip(pins, extents, strict=True):
            page, columns = pin
            fresh = page.host is None and page.alive and columns in page.pins
            if fresh and self._arena.alive(extent):
                page.host = Replica(extent, page.epoch, columns)
            else:
                self.publish_host(pin, extent)

    def publish_devices(self, pins: Sequence[PagePin], units: Sequence[Unit]) -> None:
        """:meth:`publish_device` of each pair."""
        incoming = self._pages.incoming
        for pin, unit in zip(pins, units, strict=True):
            page, columns = pin
            fresh = page.device is None and page.alive and columns in page.pins
            if fresh and unit in incoming:
                incoming.remove(unit)
                page.device = Replica(unit, page.epoch, columns)
            else:
                self.publish_device(pin, unit)

    def may_drop_device(self, page: LogicalPage) -> bool:
        """Whether the device replica is unused and the host has all that is needed."""
        idle = not page.active and page.writer is None and not page.pins
        return idle and page.device is not None and page.on_host(page.protected)

    def drop_idle(self, pages: Iterable[LogicalPage]) -> int:
        """Free the device units of those of ``pages`` that :meth:`may_drop_device`, as
        :meth:`drop_device` does; says how many."""
        units = []
        for page in pages:
            device, host = page.device, page.host
            if device is None or host is None or host.epoch != page.epoch or not page.alive:
                continue
            idle = not page.active and page.writer is None and not page.pins
            if idle and host.coverage >= max(page.holds, default=0):
                units.append(device.location)
                page.device = None
                page.committed = host.coverage
        self._pages.pool.release_many(units)
        return len(units)

    def drop_device(self, page: LogicalPage) -> None:
        """Free the device unit; columns that only it covered are forgotten."""
        if not page.alive or page.device is None:
            raise StaleHandleError(f"page {page.generation} is not on the device")
        if not self.may_drop_device(page):
            raise ProtectedRangeError(f"the device replica of page {page.generation} is needed")
        self._pages.pool.release(page.device.location)
        page.device = None
        assert page.host is not None
        page.committed = page.host.coverage

    def drop_host(self, page: LogicalPage) -> None:
        """Free the host extent; columns that only it covered are forgotten."""
        if not page.alive or page.host is None:
            raise StaleHandleError(f"page {page.generation} is not in the host arena")
        if page.device is None or not page.on_device(page.protected):
            raise ProtectedRangeError(f"the host replica of page {page.generation} is needed")
        self._arena.free(page.host.location)
        page.host = None
        page.committed = page.device.coverage

    def drop_spare(self, pages: Iterable[LogicalPage]) -> None:
        """Free the host extents of those of ``pages`` of which the device has all that is needed,
        as :meth:`drop_host` does."""
        extents = []
        for page in pages:
            device, host = page.device, page.host
            if device is None or host is None or device.epoch != page.epoch or not page.alive:
                continue
            if device.coverage >= max(page.holds + page.pins, default=0):
                extents.append(host.location)
                page.host = None
                page.committed = device.coverage
        self._arena.free_many(extents)

    def _take_incoming(self, unit: Unit) -> None:
        if unit not in self._pages.incoming:
            raise StaleHandleError(f"{unit} is not the destination of an open restore")
        self._pages.incoming.remove(unit)

    def _pinned(self, pin: PagePin) -> LogicalPage:
        if not pin.page.alive or pin.columns not in pin.page.pins:
            raise StaleHandleError("a replica was published without its pin")
        return pin.page
