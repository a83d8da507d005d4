"""One address space: the directory of pages behind a range of tokens of one pool."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from ninfer_core.contract.resources import PAGE_TOKENS
from ninfer_core.store.errors import ProtectedRangeError, TransitionError, require
from ninfer_core.store.logical_pages import (
    LogicalPage,
    LogicalPages,
    columns_on,
    pages_for,
)
from ninfer_core.store.units import Unit


@dataclass(frozen=True, slots=True)
class SpaceHandle:
    """Names one space of one pool; see :class:`~ninfer_core.store.handles.HandleTable`."""

    owner: int
    index: int
    generation: int


class Point(NamedTuple):
    """A restore point: the space keeps its first ``frontier`` tokens while the point lives."""

    space: SpaceHandle
    frontier: int
    serial: int


@dataclass(frozen=True, slots=True)
class SpaceView:
    """``frontier`` committed, ``protected`` by points, ``mapped`` by pages: tokens from 0."""

    owner: Hashable
    active: bool
    frontier: int
    protected: int
    mapped: int
    row: int | None


class Space:
    """The directory and who may extend it.

    An active space is the writer of every page from its committed frontier on; all its pages lie
    on the device. A frozen space is immutable and holds exactly its committed columns.
    """

    __slots__ = ("_store", "active", "frontier", "owner", "pages", "points", "row", "serial")

    def __init__(self, store: LogicalPages, serial: int, owner: Hashable, active: bool) -> None:
        self._store = store
        self.serial = serial
        self.owner = owner
        self.active = active
        self.frontier = 0
        self.pages: list[LogicalPage] = []
        self.points: dict[int, int] = {}
        self.row: int | None = None

    @property
    def protected(self) -> int:
        return max(self.points.values(), default=0)

    @property
    def mapped(self) -> int:
        return len(self.pages) * PAGE_TOKENS

    def append(self, unit: Unit, columns: int = 0) -> LogicalPage:
        """Map a private page at the end; ``columns`` of it count as committed."""
        page = self._store.create(unit, self.serial, columns)
        page.active += 1
        self.pages.append(page)
        return page

    def adopt(self, source: Space, tokens: int) -> None:
        """Hold the pages of the first ``tokens`` of ``source``; this directory is still empty."""
        for index in range(pages_for(tokens)):
            page = source.pages[index]
            self._store.hold(page, columns_on(index, tokens))
            page.active += self.active
            self.pages.append(page)
        self.frontier = tokens

    def commit(self, frontier: int) -> None:
        if not self.frontier <= frontier <= len(self.pages) * PAGE_TOKENS:
            raise TransitionError(
                f"commit to {frontier}; committed {self.frontier}, mapped {self.mapped}"
            )
        if frontier > self.frontier:
            first, last = self.frontier // PAGE_TOKENS, (frontier - 1) // PAGE_TOKENS
            for index in range(first, last):
                self._store.commit(self.pages[index], self.serial, PAGE_TOKENS)
            self._store.commit(self.pages[last], self.serial, frontier - last * PAGE_TOKENS)
        self.frontier = frontier

    def drop_from(self, keep: int) -> None:
        """Let go of all pages from directory index ``keep`` on."""
        for index in range(len(self.pages) - 1, keep - 1, -1):
            page = self.pages.pop()
            page.active -= self.active
            if page.writer == self.serial:
                self._store.abandon(page, self.serial)
            else:
                self._store.unhold(page, columns_on(index, self.frontier))

    def retreat(self, tokens: int) -> None:
        """Lower the frontier to ``tokens`` and let go of every page past it."""
        index, columns = divmod(tokens, PAGE_TOKENS)
        if columns and tokens < self.frontier:
            self._retreat_on(self.pages[index], columns, columns_on(index, self.frontier))
        self.drop_from(pages_for(tokens))
        self.frontier = min(self.frontier, tokens)

    def freeze(self) -> None:
        """Stop writing; hold what is committed."""
        self.drop_from(pages_for(self.frontier))
        for page in self.pages:
            page.active -= 1
        if self.pages and self.pages[-1].writer == self.serial:
            self._store.disown(self.pages[-1], self.serial)
        self.active = False

    def tail_is_free(self, tokens: int) -> bool:
        """Whether this frozen space may write on from ``tokens`` without a copy of the tail."""
        index, columns = divmod(tokens, PAGE_TOKENS)
        held = columns_on(index, self.frontier)
        return not columns or self._store.may_own(self.pages[index], held, columns)

    def thaw(self, tokens: int, spare: Unit | None) -> LogicalPage | None:
        """Become the writer from ``tokens`` on; ``spare`` replaces a tail that others need.

        Returns the page that was replaced, if any.
        """
        index, columns = divmod(tokens, PAGE_TOKENS)
        self.drop_from(pages_for(tokens))
        held = columns_on(index, self.frontier)
        self.frontier, self.active = tokens, True
        for page in self.pages:
            page.active += 1
        if not columns:
            return None
        tail = self.pages[index]
        if spare is None:
            self._store.own(tail, held, columns, self.serial)
            return None
        self.pages.pop()
        self.append(spare, columns)
        tail.active -= 1
        self._store.unhold(tail, held)
        return tail

    def check(self, name: str) -> None:
        require(self.protected <= self.frontier, f"{name}: points lie below the frontier")
        require(self.frontier <= self.mapped, f"{name}: the frontier is mapped")
        require(
            self.active or len(self.pages) == pages_for(self.frontier),
            f"{name}: a frozen space maps no page past its frontier",
        )
        require(self.row is None or self.active, f"{name}: a row belongs to an active space")
        for index, page in enumerate(self.pages):
            self._check_page(f"{name} page {index}", page, columns_on(index, self.frontier))

    def _check_page(self, name: str, page: LogicalPage, needed: int) -> None:
        require(page.alive, f"{name} is alive")
        require(page.committed >= needed, f"{name}: the needed columns are committed")
        writes = self.active and needed < PAGE_TOKENS
        require((page.writer == self.serial) == writes, f"{name}: written by its appending space")
        if writes:
            require(page.committed == needed, f"{name}: the writer's columns end at its frontier")
        else:
            require(needed in page.holds, f"{name}: the space holds what it needs")

    def _retreat_on(self, tail: LogicalPage, columns: int, held: int) -> None:
        if not self.active:
            self._store.hold(tail, columns)
            self._store.unhold(tail, held)
        elif tail.writer == self.serial:
            self._store.truncate(tail, self.serial, columns)
        elif self._store.may_own(tail, held, columns):
            self._store.own(tail, held, columns, self.serial)
        else:
            raise ProtectedRangeError(f"truncation on a page that is shared past column {columns}")
