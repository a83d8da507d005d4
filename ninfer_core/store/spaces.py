"""The address spaces of one pool: growth within a reservation, commit, truncation, rows, points."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable
from typing import NamedTuple

from ninfer_core.store.block_tables import BlockTables
from ninfer_core.store.errors import (
    PermitViolationError,
    ProtectedRangeError,
    StaleHandleError,
    TransitionError,
    require,
)
from ninfer_core.store.handles import HandleTable
from ninfer_core.store.logical_pages import LogicalPage, LogicalPages, columns_on, pages_for
from ninfer_core.store.page_records import off_device
from ninfer_core.store.reservations import Reservation
from ninfer_core.store.space import Point, Space, SpaceHandle, SpaceView
from ninfer_core.store.units import UnitPool


class Footprint(NamedTuple):
    """What an operation would really free, given the references that survive it."""

    units: int
    host_bytes: int


class SpaceLedger:
    """Every address space of one page pool, and the block table of the running ones.

    Positions are token counts from 0. The caller serialises: one thread mutates a store.
    """

    def __init__(self, pages: LogicalPages, tables: BlockTables | None = None) -> None:
        self.pages = pages
        self.tables = tables
        self._spaces: HandleTable[Space, SpaceHandle] = HandleTable(
            f"{pages.pool.name} space", SpaceHandle
        )
        self._serials = itertools.count(1)

    @property
    def pool(self) -> UnitPool:
        return self.pages.pool

    def __len__(self) -> int:
        return len(self._spaces)

    def create(self, owner: Hashable) -> SpaceHandle:
        """An empty active space."""
        return self._spaces.insert(self._new(owner, active=True))

    def release(self, handle: SpaceHandle) -> None:
        """Let go of every page, whatever the state. Refused while a restore point lives."""
        space = self._spaces.get(handle)
        if space.points:
            raise ProtectedRangeError(f"release of a space with points at {space.protected}")
        self._unbind(space)
        space.drop_from(0)
        self._spaces.remove(handle)

    def view(self, handle: SpaceHandle) -> SpaceView:
        space = self._spaces.get(handle)
        return SpaceView(
            space.owner, space.active, space.frontier, space.protected, space.mapped, space.row
        )

    def directory(self, handle: SpaceHandle) -> tuple[LogicalPage, ...]:
        """The logical pages, to be read only: residency, coverage and sharing of each."""
        return tuple(self._spaces.get(handle).pages)

    def page_ids(self, handle: SpaceHandle) -> tuple[int, ...]:
        """Physical pages in token order; the space must lie on the device."""
        space = self._spaces.get(handle)
        self._require_resident(space, space.frontier)
        return tuple(_physical(page) for page in space.pages)

    def footprint(self, handle: SpaceHandle, keep: int = 0) -> Footprint:
        """What truncation to ``keep`` tokens (or release, at 0) would free now."""
        freed = [
            page
            for page in self._spaces.get(handle).pages[pages_for(keep) :]
            if page.refs == 1 and not page.pins
        ]
        units = sum(page.device is not None for page in freed)
        return Footprint(units, sum(page.host.location.size for page in freed if page.host))

    def growth(self, handle: SpaceHandle, tokens: int) -> int:
        """Pages to reserve so that :meth:`ensure_mapped` can reach ``tokens``."""
        return max(0, pages_for(tokens) - len(self._spaces.get(handle).pages))

    def ensure_mapped(self, handle: SpaceHandle, tokens: int, grant: Reservation) -> int:
        """Map pages until ``tokens`` fit and return how many were added.

        Raises :class:`PermitViolationError`, having mapped nothing, if ``grant`` is too small.
        """
        space = self._active(handle)
        missing = pages_for(tokens) - len(space.pages)
        if missing <= 0:
            return 0
        name = self.pool.name
        if missing > grant.remaining(name):
            raise PermitViolationError(
                f"{name}: {tokens} tokens need {missing} pages more; the reservation holds "
                f"{grant.remaining(name)}"
            )
        self._require_width(space, pages_for(tokens))
        for _ in range(missing):
            page = space.append(grant.draw(name, self._near(space)))
            if space.row is not None and self.tables is not None:
                self.tables.append(space.row, _physical(page))
        return missing

    def commit(self, handle: SpaceHandle, frontier: int) -> None:
        """Columns below ``frontier`` are final; a commit never moves the frontier back."""
        self._active(handle).commit(frontier)

    def trim(self, handle: SpaceHandle, tokens: int = 0) -> None:
        """Unmap pages past both ``tokens`` and the committed frontier (a provisional suffix)."""
        space = self._active(handle)
        space.drop_from(pages_for(max(tokens, space.frontier)))
        self._cut(space)

    def truncate(self, handle: SpaceHandle, tokens: int) -> None:
        """Forget committed tokens from ``tokens`` on, and any provisional suffix.

        Raises :class:`ProtectedRangeError`, changing nothing, when a point lies past ``tokens`` or
        an active space would have to write on a page that others need further.
        """
        space = self._spaces.get(handle)
        if not 0 <= tokens <= space.frontier:
            raise TransitionError(f"truncation to {tokens}; the frontier is {space.frontier}")
        if tokens < space.protected:
            raise ProtectedRangeError(f"truncation to {tokens}; {space.protected} are protected")
        space.retreat(tokens)
        self._cut(space)

    def protect(self, handle: SpaceHandle, frontier: int) -> Point:
        """Set a restore point at a committed frontier. Points share the space: no page is used."""
        space = self._spaces.get(handle)
        if not 0 <= frontier <= space.frontier:
            raise TransitionError(f"point at {frontier}; the frontier is {space.frontier}")
        point = Point(handle, frontier, next(self._serials))
        space.points[point.serial] = frontier
        return point

    def unprotect(self, point: Point) -> None:
        """Remove a restore point; pages go when the space is truncated or released."""
        space = self._spaces.get(point.space)
        if space.points.pop(point.serial, None) is None:
            raise StaleHandleError(f"the restore point at {point.frontier} was already removed")

    def bind_row(self, handle: SpaceHandle, row: int) -> None:
        """Give an active space an execution row and write its whole directory there."""
        space = self._active(handle)
        if self.tables is None or space.row is not None:
            raise TransitionError(f"{self.pool.name}: no table, or row {space.row} already bound")
        self.tables.bind(row, [_physical(page) for page in space.pages])
        space.row = row

    def unbind_row(self, handle: SpaceHandle) -> None:
        """Give the execution row back; a space without one is left as it is."""
        self._unbind(self._spaces.get(handle))

    def keep_only(self, frozen: Collection[SpaceHandle]) -> None:
        """Remove every frozen space but these, whatever it holds, and give back all that is not in
        the directory of one that is left. Active ones all stay."""
        kept = {handle.index for handle in frozen}
        for handle, space in list(self._spaces.items()):
            if not space.active and handle.index not in kept:
                self._spaces.remove(handle)
        holds, active = self._needs()
        writers = {space.serial for space in self._spaces.values() if space.active}
        self.pages.keep_only(holds, active, writers)

    def check(self) -> None:
        """Every page is held exactly as the directories need it; rows mirror directories."""
        self._spaces.check()
        self.pages.check()
        for space in self._spaces.values():
            space.check(f"{self.pool.name} space {space.serial}")
            self._check_row(space)
        holds, active = self._needs()
        for page in self.pages.live_pages():
            name, number = f"{self.pool.name} page {page.generation}", page.generation
            require(sorted(page.holds) == sorted(holds[number]), f"{name}: holds")
            require(page.active == active[number], f"{name}: count of active spaces")
        if self.tables is not None:
            self.tables.check()

    def _needs(self) -> tuple[dict[int, list[int]], dict[int, int]]:
        """By generation of pages: the holds and the active spaces that the directories add up to.

        Pages that a directory names and that are not live are left out.
        """
        holds: dict[int, list[int]] = {page.generation: [] for page in self.pages.live_pages()}
        active = dict.fromkeys(holds, 0)
        for space in self._spaces.values():
            for index, page in enumerate(space.pages):
                if page.generation not in holds:
                    continue
                active[page.generation] += space.active
                if page.writer != space.serial:
                    holds[page.generation].append(columns_on(index, space.frontier))
        return holds, active

    def _check_row(self, space: Space) -> None:
        if space.row is not None and self.tables is not None:
            ids = tuple(_physical(page) for page in space.pages)
            require(self.tables.row(space.row) == ids, f"row {space.row} mirrors its directory")

    def _near(self, space: Space) -> int:
        """Where the next page would make one run with the last; running spaces start apart."""
        if space.pages:
            last = space.pages[-1].device
            return last.location.index + 1 if last is not None else 0
        if self.tables is None or space.row is None:
            return 0
        return space.row * (self.pool.capacity // self.tables.rows)

    def _new(self, owner: Hashable, active: bool) -> Space:
        return Space(self.pages, next(self._serials), owner, active)

    def _active(self, handle: SpaceHandle) -> Space:
        space = self._spaces.get(handle)
        if not space.active:
            raise TransitionError(f"a frozen space of {self.pool.name} is immutable")
        return space

    def _unbind(self, space: Space) -> None:
        if space.row is not None and self.tables is not None:
            self.tables.unbind(space.row)
        space.row = None

    def _cut(self, space: Space) -> None:
        if space.row is not None and self.tables is not None:
            self.tables.cut(space.row, len(space.pages))

    def _require_width(self, space: Space, pages: int) -> None:
        if space.row is not None and self.tables is not None and pages > self.tables.columns:
            raise TransitionError(f"{pages} pages do not fit a table row of {self.tables.columns}")

    def _require_resident(self, space: Space, tokens: int) -> None:
        for page in off_device(space.pages, tokens):
            index = space.pages.index(page)
            raise TransitionError(f"{self.pool.name}: page {index} is not on the device")


def _physical(page: LogicalPage) -> int:
    assert page.device is not None
    return page.device.location.index
