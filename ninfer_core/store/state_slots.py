"""Device slots for state images: one writer while live, immutable once published.

A slot cannot be had without the instruction that fills it, so no state is ever read that another
sequence left behind.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from ninfer_core.store.errors import (
    ProtectedRangeError,
    StaleHandleError,
    TransitionError,
    require,
)
from ninfer_core.store.instructions import ClearState, CopyState
from ninfer_core.store.reservations import Reservation
from ninfer_core.store.units import Unit, UnitPool


@dataclass(frozen=True, slots=True)
class Slot:
    """One state image on the device; ``index`` is the row that kernels take."""

    pool: str
    index: int
    generation: int


class _Image:
    """``owner`` may write the live image; a published one has ``refs`` holders and no owner."""

    __slots__ = ("owner", "pins", "published", "refs")

    def __init__(self, owner: Hashable) -> None:
        self.owner: Hashable = owner
        self.published = False
        self.refs = 1
        self.pins = 0


class StateSlots:
    """The images of one pool of slots.

    Device tensors have :attr:`rows` = capacity + 1 rows: the last one, :attr:`scratch`, is never
    allocated; padding rows of a unit read and write it.
    """

    def __init__(self, pool: UnitPool) -> None:
        self.pool = pool
        self._images: dict[Slot, _Image] = {}

    @property
    def rows(self) -> int:
        return self.pool.capacity + 1

    @property
    def scratch(self) -> int:
        return self.pool.capacity

    def create(self, owner: Hashable, grant: Reservation, near: int = 0) -> tuple[Slot, ClearState]:
        """A live image in the initial state; the first free slot from ``near`` on, if any."""
        slot = self._draw(owner, grant, near)
        return slot, ClearState(slot.pool, slot.index)

    def receive(self, owner: Hashable, grant: Reservation, near: int = 0) -> Slot:
        """A live image that the caller fills whole by a copy from elsewhere, before its use."""
        return self._draw(owner, grant, near)

    def fork(self, source: Slot, owner: Hashable, grant: Reservation) -> tuple[Slot, CopyState]:
        """A live image of ``owner`` that begins as a copy of ``source``, live or published."""
        self._image(source)
        slot = self._draw(owner, grant)
        return slot, CopyState(slot.pool, source.index, slot.index)

    def move(self, source: Slot, owner: Hashable) -> Slot:
        """Turn a published image into the live one of ``owner``, in place.

        Only where one holder is left and no copy reads it; ``source`` is stale afterwards.
        """
        if not self.may_move(source):
            raise ProtectedRangeError(f"{source} is shared, read by a copy or not published")
        del self._images[source]
        slot = _slot(source.pool, self.pool.renew(_unit(source)))
        self._images[slot] = _Image(owner)
        return slot

    def may_move(self, source: Slot) -> bool:
        image = self._image(source)
        return image.published and image.refs == 1 and not image.pins

    def freeze(self, slot: Slot, owner: Hashable) -> None:
        """Publish the live image of ``owner``: nobody writes it again; the caller holds it."""
        self.require_writer(slot, owner)
        image = self._images[slot]
        image.published, image.owner = True, None

    def hold(self, slot: Slot) -> None:
        """One more holder of a published image."""
        image = self._image(slot)
        if not image.published or not image.refs:
            raise TransitionError(f"{slot} is not published; only a held image is shared")
        image.refs += 1

    def release(self, slot: Slot) -> None:
        """End one hold, or the life of a live image; the last one frees the slot."""
        image = self._image(slot)
        if not image.refs:
            raise StaleHandleError(f"{slot} has no holder left")
        image.refs -= 1
        self._reap(slot, image)

    def pin(self, slot: Slot) -> None:
        """Keep the image for a copy in flight, past its release if need be."""
        image = self._image(slot)
        if not image.published:
            raise TransitionError(f"{slot} is live; a copy would race with its writer")
        image.pins += 1

    def unpin(self, slot: Slot) -> None:
        image = self._image(slot)
        if not image.pins:
            raise StaleHandleError(f"{slot} is not pinned")
        image.pins -= 1
        self._reap(slot, image)

    def require_writer(self, slot: Slot, owner: Hashable) -> None:
        """Raise unless ``owner`` may write ``slot`` now: what a launch asks for its rows."""
        image = self._image(slot)
        if image.published or image.owner != owner:
            raise ProtectedRangeError(f"{slot} may not be written by {owner!r}")

    def require_published(self, slot: Slot) -> None:
        """Raise unless ``slot`` is a published image that somebody holds."""
        image = self._image(slot)
        if not image.published or not image.refs:
            raise TransitionError(f"{slot} is not a published image that is held")

    def keep_only(self, slots: Collection[Slot]) -> None:
        """Free every published image but ``slots``, each of which has one holder from now on, and
        those that a copy has pinned; and every allocated slot without an image."""
        for slot, image in list(self._images.items()):
            if not image.published:
                continue
            image.refs = int(slot in slots)
            if not image.refs and not image.pins:
                del self._images[slot]
        self.pool.keep_only({_unit(slot) for slot in self._images})

    def check(self) -> None:
        units = {_unit(slot) for slot in self._images}
        require(units == self.pool.live_units(), f"{self.pool.name}: allocated slots have images")
        for slot, image in self._images.items():
            require(image.refs + image.pins > 0, f"{slot} lives while it is held or pinned")
            require(image.refs >= 0 and image.pins >= 0, f"{slot}: counts are not negative")
            live_alone = image.refs == 1 and not image.pins
            require(image.published or live_alone, f"{slot}: a live image has its owner alone")

    def _draw(self, owner: Hashable, grant: Reservation, near: int = 0) -> Slot:
        slot = _slot(self.pool.name, grant.draw(self.pool.name, near))
        self._images[slot] = _Image(owner)
        return slot

    def _image(self, slot: Slot) -> _Image:
        image = self._images.get(slot)
        if image is None:
            raise StaleHandleError(f"{slot} is not allocated in this generation")
        return image

    def _reap(self, slot: Slot, image: _Image) -> None:
        if not image.refs and not image.pins:
            del self._images[slot]
            self.pool.release(_unit(slot))


def _slot(pool: str, unit: Unit) -> Slot:
    return Slot(pool, unit.index, unit.generation)


def _unit(slot: Slot) -> Unit:
    return Unit(slot.index, slot.generation)
