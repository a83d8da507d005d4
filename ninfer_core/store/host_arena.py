"""Byte extents of one fixed host block: best fit, lowest offset first, coalescing.

Extents differ in size, so free bytes prove nothing: only :meth:`HostArena.allocate` does. An
extent is charged from its allocation, whether data has arrived or not.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass

from ninfer_core.store.errors import StaleHandleError, TransitionError, require


@dataclass(frozen=True, slots=True)
class Extent:
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
        if size <= 0:
            raise ValueError(f"arena {self.name!r}: extent of {size} bytes; ask for at least 1")
        size = self.rounded(size)
        at = bisect_left(self._by_size, (size, -1))
        if at == len(self._by_size):
            return None
        length, offset = self._by_size[at]
        self._remove_free(offset, length)
        if length > size:
            self._add_free(offset + size, length - size)
        self._generation += 1
        extent = Extent(offset, size, self._generation)
        self._live[offset] = extent
        return extent

    def free(self, extent: Extent) -> None:
        """Give an extent back. Refused while pinned; a second time raises StaleHandleError."""
        self.validate(extent)
        if self.pinned(extent):
            raise TransitionError(f"arena {self.name}: {extent} is pinned by a copy in flight")
        del self._live[extent.offset]
        start, end = extent.offset, extent.offset + extent.size
        if end in self._size_at:
            end += self._size_at[end]
            self._remove_free(extent.offset + extent.size, end - extent.offset - extent.size)
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
        for extent in self.live_extents().difference(extents):
            if not self.pinned(extent):
                self.free(extent)

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
