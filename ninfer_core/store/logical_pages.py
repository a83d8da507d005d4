"""Logical KV pages: 64 columns of content, whoever reads or writes them and wherever they lie.

Who may touch a page follows from three facts kept here. ``holds`` has one entry per address space
that needs committed columns of it, ``pins`` one per copy in flight, and ``writer`` names the one
space that may append. A page has a writer only while it is not full; a full page is immutable.
Appending starts at ``committed``, so it never disturbs a hold; truncating may not go below any
hold or pin. Having a single reference is therefore not a permission to write: being ``writer`` is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ninfer_core.contract.resources import PAGE_TOKENS
from ninfer_core.store.errors import ProtectedRangeError, StaleHandleError, TransitionError, require
from ninfer_core.store.host_arena import Extent, HostArena
from ninfer_core.store.page_records import (
    LogicalPage,
    PagePin,
    Replica,
    check_page,
    columns_of,
    columns_on,
    pages_for,
)
from ninfer_core.store.records import records
from ninfer_core.store.units import Unit, UnitPool

__all__ = ["LogicalPage", "LogicalPages", "PagePin", "Replica", "columns_on", "pages_for"]


class LogicalPages:
    """All pages of one pool. Frees a page's unit and extent with its last reference and pin.

    ``incoming`` are units that a restore is filling; they carry no page yet.
    """

    def __init__(self, pool: UnitPool, arena: HostArena | None = None) -> None:
        self.pool = pool
        self.incoming: set[Unit] = set()
        self._arena = arena
        self._live: dict[int, LogicalPage] = {}
        self._generation = 0

    def create(self, unit: Unit, writer: int, columns: int = 0) -> LogicalPage:
        """A page on ``unit``, written by ``writer``; ``columns`` arrive there by a copy."""
        self._generation += 1
        page = LogicalPage(self._generation, unit, writer)
        self._live[self._generation] = page
        if columns:
            self.commit(page, writer, columns)
        return page

    def commit(self, page: LogicalPage, writer: int, columns: int) -> None:
        """Columns up to ``columns`` are final. A full page loses its writer to a hold."""
        if not page.alive or page.writer != writer:
            self._require_writer(page, writer)
        if not page.committed <= columns <= PAGE_TOKENS:
            raise TransitionError(f"commit to column {columns} of a page at {page.committed}")
        assert page.device is not None
        page.committed = page.device.coverage = columns
        if columns == PAGE_TOKENS:
            page.writer = None
            page.holds.append(columns)

    def truncate(self, page: LogicalPage, writer: int, columns: int) -> None:
        """Forget committed columns from ``columns`` on, so that they can be written again."""
        self._require_writer(page, writer)
        if columns < page.protected:
            raise ProtectedRangeError(f"truncation to column {columns} of {page.protected} needed")
        self._rewind(page, columns)

    def abandon(self, page: LogicalPage, writer: int) -> None:
        """The writer leaves and needs nothing of the page."""
        self._require_writer(page, writer)
        page.writer = None
        self._reap(page)

    def disown(self, page: LogicalPage, writer: int) -> None:
        """The writer stops writing and holds what it committed."""
        columns = page.committed
        self._require_writer(page, writer)
        if columns:
            page.holds.append(columns)
        page.writer = None
        self._reap(page)

    def may_own(self, page: LogicalPage, held: int, columns: int) -> bool:
        """Whether the owner of a hold of ``held`` may become the writer from ``columns`` on."""
        others = list(page.holds)
        others.remove(held)
        return page.writer is None and max([*others, *page.pins], default=0) <= columns

    def own(self, page: LogicalPage, held: int, columns: int, writer: int) -> None:
        """Turn a hold into the writer's place at ``columns``; see :meth:`may_own`."""
        if not self.may_own(page, held, columns):
            raise ProtectedRangeError(f"a page shared past column {columns} got a new writer")
        page.holds.remove(held)
        page.writer = writer
        self._rewind(page, columns)

    def hold(self, page: LogicalPage, columns: int) -> None:
        """One more space needs the first ``columns``, which must be committed."""
        self._require_alive(page)
        if not 0 < columns <= page.committed:
            raise TransitionError(f"hold on {columns} columns of a page with {page.committed}")
        page.holds.append(columns)

    def unhold(self, page: LogicalPage, columns: int) -> None:
        """End one hold of exactly ``columns``; the last one frees the page."""
        self._require_alive(page)
        if columns not in page.holds:
            raise StaleHandleError(f"no hold of {columns} columns is on page {page.generation}")
        page.holds.remove(columns)
        self._reap(page)

    def pin(self, page: LogicalPage, columns: int) -> PagePin:
        """Keep the first ``columns`` in place and unchanged until :meth:`unpin`."""
        if not page.alive or columns > page.committed:
            self._refuse_pin(page, columns)
        page.pins.append(columns)
        return PagePin(page, columns)

    def unpin(self, pin: PagePin) -> None:
        self._require_alive(pin.page)
        if pin.columns not in pin.page.pins:
            raise StaleHandleError(f"page {pin.page.generation} has no pin of {pin.columns}")
        pin.page.pins.remove(pin.columns)
        self._reap(pin.page)

    def pin_many(self, pages: Sequence[LogicalPage], tokens: int) -> list[PagePin]:
        """Pin ``pages``, which are those of the first ``tokens`` of a directory, each as
        :meth:`pin` does, or none and its error."""
        pins = records(PagePin, zip(pages, columns_of(tokens), strict=True))
        for page, columns in pins:
            if not page.alive or columns > page.committed:
                self._refuse_pin(page, columns)
        for page, columns in pins:
            page.pins.append(columns)
        return pins

    def unpin_many(self, pins: Iterable[PagePin]) -> None:
        """End each of ``pins`` as :meth:`unpin` does."""
        for pin in pins:
            page, columns = pin
            if not page.alive or columns not in page.pins:
                self.unpin(pin)
            page.pins.remove(columns)
            if not page.pins and page.writer is None and not page.holds:
                self._reap(page)

    def keep_only(
        self, holds: Mapping[int, list[int]], active: Mapping[int, int], writers: Collection[int]
    ) -> None:
        """Make these, by generation, the only references; free what has none and no pin, and every
        allocated unit without a page or a restore on its way."""
        for page in self.live_pages():
            page.holds = list(holds.get(page.generation, ()))
            page.active = active.get(page.generation, 0)
            page.writer = page.writer if page.writer in writers else None
            if not page.refs and not page.pins:
                self._forget(page)
        carried = {page.device.location for page in self._live.values() if page.device}
        self.pool.keep_only(carried | self.incoming)

    def _forget(self, page: LogicalPage) -> None:
        """Whatever the ledgers say of its places."""
        page.alive = False
        del self._live[page.generation]
        if page.host is not None and self._arena is not None and not self._lost(page.host.location):
            self._arena.free(page.host.location)

    def _lost(self, extent: Extent) -> bool:
        assert self._arena is not None
        return not self._arena.alive(extent) or self._arena.pinned(extent)

    def live_pages(self) -> tuple[LogicalPage, ...]:
        return tuple(self._live.values())

    def check(self) -> None:
        units = [page.device.location for page in self._live.values() if page.device]
        require(len(units) == len(set(units)), f"{self.pool.name}: a unit carries one page")
        require(
            self.incoming.isdisjoint(units)
            and self.incoming.union(units) == self.pool.live_units(),
            f"{self.pool.name}: each allocated unit carries a live page or an open restore",
        )
        for page in self._live.values():
            check_page(page, self.pool.name)

    def _rewind(self, page: LogicalPage, columns: int) -> None:
        if columns >= page.committed:
            return
        page.committed = columns
        page.epoch += 1
        for replica in (page.device, page.host):
            if replica is not None:
                replica.clip(page.epoch, columns)

    def _require_writer(self, page: LogicalPage, writer: int) -> None:
        self._require_alive(page)
        if page.writer != writer:
            raise ProtectedRangeError(f"page {page.generation} is not written by space {writer}")

    def _require_alive(self, page: LogicalPage) -> None:
        if not page.alive:
            raise StaleHandleError(f"logical page {page.generation} was freed")

    def _refuse_pin(self, page: LogicalPage, columns: int) -> None:
        self._require_alive(page)
        raise TransitionError(f"pin on {columns} columns of a page with {page.committed}")

    def _reap(self, page: LogicalPage) -> None:
        if page.refs or page.pins:
            return
        page.alive = False
        del self._live[page.generation]
        if page.device is not None:
            self.pool.release(page.device.location)
        if page.host is not None and self._arena is not None:
            self._arena.free(page.host.location)
