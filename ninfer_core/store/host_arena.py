"""Byte extents of one fixed host block: best fit, lowest offset first, coalescing.

Extents differ in size, so free bytes prove nothing: only :meth:`HostArena.allocate` does. An
extent is charged from its allocation, whether data has arrived or not.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable
from itertools import groupby, repeat
from typing import NamedTuple

from ninfer_core.store.errors import StaleHandleError, TransitionError, require
from ninfer_core.store.records import records


class Extent(NamedTuple):
    """``size`` bytes at ``offset``, both multiples of the arena's alignment."""

    offset: int
    size: int
    generation: int


class HostArena:
    """The ledger of one pinned block of ``capacity`` bytes; it never touches the bytes."""

    def __init__(self, name: str, capacity: int, alignment: int = 256) -> None:
        if capacity < 0 or alignment <= 0:
            raise ValueError(f"arena {name!r}: capacity must be >= 0 and alignment > 0")
        self.name = name
        self.alignment = alignment
        self.capacity = capacity // alignment * alignment
        self.free_bytes = 0
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}
        self._live: dict[int, Extent] = {}
        self._pins: dict[int, int] = {}
        self._generation = 0
        if self.capacity:
            self._add_free(0, self.capacity)

    @property
    def used_bytes(self) -> int:
        return self.capacity - self.free_bytes

    @property
    def largest_free(self) -> int:
        """The greatest extent that can be allocated now."""
        return self._by_size[-1][0] if self._by_size else 0

    def rounded(self, size: int) -> int:
        """The bytes that an extent for ``size`` bytes is charged."""
        return -(-size // self.alignment) * self.alignment

    def allocate(self, size: int) -> Extent | None:
        """An extent of at least ``size`` bytes (rounded to the alignment), or None."""
        made = self.allocate_many(size, 1)
        return made[0] if made else None

    def allocate_many(self, size: int, count: int) -> list[Extent] | None:
        """What ``count`` calls of :meth:`allocate` would give; None, with nothing allocated, where
        one of them would find no room. Extents of one free block are made together: what is left
        of the best fit is the best fit of the next."""
        if size <= 0:
            raise ValueError(f"arena {self.name!r}: extent of {size} bytes; ask for at least 1")
        size, made = self.rounded(size), list[Extent]()
        while len(made) < count:
            at = bisect_left(self._by_size, (size, -1))
            if at == len(self._by_size):
                self.free_many(made)
                return None
            length, offset = self._by_size[at]
            fits = min(count - len(made), length // size)
            self._remove_free(offset, length)
            if length > fits * size:
                self._add_free(offset + fits * size, length - fits * size)
            places = range(offset, offset + fits * size, size)
            numbers = range(self._generation + 1, self._generation + 1 + fits)
            self._generation += fits
            fresh = records(Extent, zip(places, repeat(size), numbers, strict=False))
            self._live.update(zip(places, fresh, strict=True))
            made += fresh
        return made

    def fits(self, sizes: Iterable[int]) -> bool:
        """Whether extents of these sizes can be allocated now, in this order."""
        blocks = [length for length, _ in self._by_size]
        for asked, run in groupby(sizes):
            size, left = self.rounded(asked), sum(1 for _ in run)
            while left:
                at = bisect_left(blocks, size)
                if at == len(blocks):
                    return False
                length = blocks.pop(at)
                taken = min(left, length // size)
                insort(blocks, length - taken * size)
                left -= taken
        return True

    def free(self, extent: Extent) -> None:
        """Give an extent back. Refused while pinned; a second time raises StaleHandleError."""
        self.free_many((extent,))

    def free_many(self, extents: Collection[Extent]) -> None:
        """Give all of them back, or, where one is refused, none; neighbours at once."""
        live, pins = self._live, self._pins
        for extent in extents:
            if live.get(extent.offset) != extent or extent.offset in pins:
                self._refuse(extent)
        if len(set(extents)) < len(extents):
            raise StaleHandleError(f"arena {self.name}: an extent was freed twice at once")
        start = end = -1
        for offset, size, _ in sorted(extents):
            del live[offset]
            if offset != end:
                if end > start:
                    self._coalesce(start, end)
                start = offset
            end = offset + size
        if end > start:
            self._coalesce(start, end)

    def _refuse(self, extent: Extent) -> None:
        self.validate(extent)
        raise TransitionError(f"arena {self.name}: {extent} is pinned by a copy in flight")

    def _coalesce(self, start: int, end: int) -> None:
        """Bytes from ``start`` to ``end`` are free, and one block with the free ones beside."""
        if end in self._size_at:
            length = self._size_at[end]
            self._remove_free(end, length)
            end += length
        before = self._start_of_end.get(start)
        if before is not None:
            self._remove_free(before, start - before)
            start = before
        self._add_free(start, end - start)

    def pin(self, extent: Extent) -> None:
        """Keep the extent while a copy reads or fills it; pins count."""
        self.validate(extent)
        self._pins[extent.offset] = self._pins.get(extent.offset, 0) + 1

    def unpin(self, extent: Extent) -> None:
        self.validate(extent)
        pins = self._pins.get(extent.offset, 0)
        if not pins:
            raise TransitionError(f"arena {self.name}: {extent} is not pinned")
        if pins == 1:
            del self._pins[extent.offset]
        else:
            self._pins[extent.offset] = pins - 1

    def pinned(self, extent: Extent) -> bool:
        return extent.offset in self._pins

    def alive(self, extent: Extent) -> bool:
        return self._live.get(extent.offset) == extent

    def validate(self, extent: Extent) -> None:
        """Raise :class:`StaleHandleError` unless ``extent`` is allocated in this generation."""
        if not self.alive(extent):
            raise StaleHandleError(f"arena {self.name}: {extent} is not allocated")

    def keep_only(self, extents: Collection[Extent]) -> None:
        """Free every extent but ``extents`` and those that a copy has pinned."""
        lost = self.live_extents().difference(extents)
        self.free_many([extent for extent in lost if not self.pinned(extent)])

    def live_extents(self) -> frozenset[Extent]:
        return frozenset(self._live.values())

    def check(self) -> None:
        blocks = [(offset, size, True) for offset, size in self._size_at.items()]
        blocks += [(e.offset, e.size, False) for e in self._live.values()]
        end, was_free = 0, False
        for offset, size, free in sorted(blocks):
            require(offset == end, f"{self.name}: extents and free blocks tile the arena at {end}")
            require(not (free and was_free), f"{self.name}: free blocks at {offset} are coalesced")
            end, was_free = offset + size, free
        require(end == self.capacity, f"{self.name}: extents and free blocks reach the capacity")
        self._check_free_index()
        require(
            self._pins.keys() <= self._live.keys(), f"{self.name}: only live extents are pinned"
        )

    def _check_free_index(self) -> None:
        sizes = sorted((size, offset) for offset, size in self._size_at.items())
        ends = {offset + size: offset for offset, size in self._size_at.items()}
        require(self._by_size == sizes, f"{self.name}: the size index lists the free blocks")
        require(self._start_of_end == ends, f"{self.name}: the end index lists the free blocks")
        require(
            self.free_bytes == sum(self._size_at.values()), f"{self.name}: free bytes are counted"
        )

    def _add_free(self, offset: int, size: int) -> None:
        insort(self._by_size, (size, offset))
        self._size_at[offset] = size
        self._start_of_end[offset + size] = offset
        self.free_bytes += size

    def _remove_free(self, offset: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        del self._size_at[offset]
        del self._start_of_end[offset + size]
        self.free_bytes -= size
