"""How address spaces share content: freeze, activate (move), fork and share, and leases."""

from __future__ import annotations

from collections.abc import Hashable

from ninfer_core.contract.resources import PAGE_TOKENS
from ninfer_core.store.errors import StaleHandleError, TransitionError
from ninfer_core.store.instructions import CopyPage
from ninfer_core.store.logical_pages import (
    LogicalPage,
    LogicalPages,
    PagePin,
    pages_for,
)
from ninfer_core.store.reservations import Reservation
from ninfer_core.store.space import Space, SpaceHandle
from ninfer_core.store.spaces import SpaceLedger


class SpaceLease:
    """Keeps the first tokens of a space in place and unchanged while a copy reads them."""

    __slots__ = ("_pins", "_store")

    def __init__(self, store: LogicalPages, pins: list[PagePin]) -> None:
        self._store = store
        self._pins: list[PagePin] | None = pins

    @property
    def pins(self) -> tuple[PagePin, ...]:
        """One per page, in token order."""
        return tuple(self._pins or ())

    def release(self) -> None:
        """End the lease. Raises :class:`StaleHandleError` the second time."""
        if self._pins is None:
            raise StaleHandleError("a space lease was released twice")
        pins, self._pins = self._pins, None
        self._store.unpin_many(pins)


class AddressSpaces(SpaceLedger):
    """A :class:`SpaceLedger` whose spaces share pages.

    Full pages are shared; a page is written by one space only, so a second writer of a partial
    tail gets a copy: at frontier 1000 a fork shares 15 pages and copies 40 columns to its own.
    """

    def freeze(self, handle: SpaceHandle) -> None:
        """Make an active space immutable at its committed frontier; its row is given back."""
        space = self._active(handle)
        self._unbind(space)
        space.freeze()

    def activation_pages(self, handle: SpaceHandle, frontier: int) -> int:
        """Pages (0 or 1) to reserve for :meth:`activate` at ``frontier``."""
        return 0 if self._frozen(handle, frontier).tail_is_free(frontier) else 1

    def activate(
        self, handle: SpaceHandle, frontier: int, grant: Reservation
    ) -> tuple[CopyPage, ...]:
        """Move: a frozen space writes on from ``frontier`` and drops what lies past it.

        The partial tail is taken over where nobody else needs more of it, else copied. Raises
        :class:`TransitionError`, changing nothing, for a point past ``frontier`` or a page that
        is not on the device.
        """
        space = self._frozen(handle, frontier)
        self._require_resident(space, frontier)
        free = space.tail_is_free(frontier)
        spare = None if free else grant.draw(self.pool.name)
        replaced = space.thaw(frontier, spare)
        if replaced is None:
            return ()
        return (self._copy(replaced, space.pages[-1]),)

    def fork_pages(self, frontier: int) -> int:
        """Pages (0 or 1) to reserve for :meth:`fork` at ``frontier``."""
        return 1 if frontier % PAGE_TOKENS else 0

    def fork(
        self, handle: SpaceHandle, frontier: int, owner: Hashable, grant: Reservation
    ) -> tuple[SpaceHandle, tuple[CopyPage, ...]]:
        """A new active space that continues the first ``frontier`` tokens of ``handle``."""
        source = self._committed(handle, frontier)
        self._require_resident(source, frontier)
        index, columns = divmod(frontier, PAGE_TOKENS)
        spare = grant.draw(self.pool.name) if columns else None
        child = self._new(owner, active=True)
        child.adopt(source, index * PAGE_TOKENS)
        copies: tuple[CopyPage, ...] = ()
        if spare is not None:
            copies = (self._copy(source.pages[index], child.append(spare, columns)),)
        child.frontier = frontier
        return self._spaces.insert(child), copies

    def share(self, handle: SpaceHandle, frontier: int, owner: Hashable) -> SpaceHandle:
        """A new frozen space over the first ``frontier`` tokens, partial tail included."""
        source = self._committed(handle, frontier)
        child = self._new(owner, active=False)
        child.adopt(source, frontier)
        return self._spaces.insert(child)

    def lease(self, handle: SpaceHandle, frontier: int) -> SpaceLease:
        """Pin the first ``frontier`` tokens; the pages outlive even the space's release."""
        source = self._committed(handle, frontier)
        pages = source.pages[: pages_for(frontier)]
        return SpaceLease(self.pages, self.pages.pin_many(pages, frontier))

    def _committed(self, handle: SpaceHandle, frontier: int) -> Space:
        space = self._spaces.get(handle)
        if not 0 <= frontier <= space.frontier:
            raise TransitionError(f"no content at {frontier}; the frontier is {space.frontier}")
        return space

    def _frozen(self, handle: SpaceHandle, frontier: int) -> Space:
        space = self._committed(handle, frontier)
        if space.active or frontier < space.protected:
            state = "active" if space.active else f"protected up to {space.protected}"
            raise TransitionError(f"activation at {frontier} of a space that is {state}")
        return space

    def _copy(self, source: LogicalPage, target: LogicalPage) -> CopyPage:
        assert source.device is not None
        assert target.device is not None
        return CopyPage(
            self.pool.name,
            source.device.location.index,
            target.device.location.index,
            target.committed,
        )
