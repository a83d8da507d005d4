"""A fixed number of equal units (KV pages or state slots), counted as one pool.

``allocated + reserved + available == capacity`` at all times. A reservation is a count, not a set
of units; which unit a reservation becomes is decided when it is drawn: the lowest free one from the
asked place on, else the lowest of all, so that equal histories give equal layouts.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ninfer_core.store.demand import PoolShortfall
from ninfer_core.store.errors import PermitViolationError, StaleHandleError, require
from ninfer_core.store.records import records


@dataclass(frozen=True, slots=True)
class Plane:
    """One device's share of a pool: ``units`` of ``unit_bytes`` each, on pipeline rank ``rank``."""

    name: str
    rank: int
    units: int
    unit_bytes: int


class Unit(NamedTuple):
    """One allocation of the unit ``index``; the generation differs in its next allocation."""

    index: int  # type: ignore[assignment]  # in the place of tuple.index, which nobody asks for
    generation: int


class UnitPool:
    """The ledger of one pool. A unit exists on every plane, so the smallest rank bounds all.

    ``planes`` may hold several planes of one rank (keys, values, scales): each must fit.
    """

    def __init__(self, name: str, planes: Sequence[Plane]) -> None:
        if not planes:
            raise ValueError(f"pool {name!r} has no plane; give at least one")
        self.name = name
        self.planes = tuple(planes)
        self.capacity = min(plane.units for plane in planes)
        self.allocated = 0
        self.reserved = 0
        self._free = list(range(self.capacity))
        self._generations = [1] * self.capacity
        self._live = bytearray(self.capacity)

    @property
    def available(self) -> int:
        """Units that are neither allocated nor promised."""
        return self.capacity - self.allocated - self.reserved

    @property
    def unit_bytes(self) -> int:
        """Bytes of one unit over all planes and ranks: the size of its host copy."""
        return sum(plane.unit_bytes for plane in self.planes)

    def reserve(self, count: int) -> PoolShortfall | None:
        """Promise ``count`` units, or none of them."""
        if count < 0:
            raise PermitViolationError(f"pool {self.name}: reservation of {count} units")
        if count > self.available:
            return PoolShortfall(self.name, count, self.available)
        self.reserved += count
        return None

    def unreserve(self, count: int) -> None:
        """Take back a promise that was not drawn."""
        if not 0 <= count <= self.reserved:
            raise PermitViolationError(
                f"pool {self.name}: {count} units given back, {self.reserved} reserved"
            )
        self.reserved -= count

    def draw(self, near: int = 0) -> Unit:
        """Turn one promised unit into an allocated one, the first free one from ``near`` on."""
        if not self.reserved:
            raise PermitViolationError(f"pool {self.name}: a unit drawn without a reservation")
        place = bisect_left(self._free, near)
        index = self._free.pop(place if place < len(self._free) else 0)
        self._live[index] = 1
        self.reserved -= 1
        self.allocated += 1
        return Unit(index, self._generations[index])

    def draw_many(self, count: int) -> list[Unit]:
        """What ``count`` calls of :meth:`draw` would give, or nothing and the error."""
        if count > self.reserved:
            raise PermitViolationError(
                f"pool {self.name}: {count} units drawn, {self.reserved} reserved"
            )
        indices = self._free[:count]
        del self._free[:count]
        for index in indices:
            self._live[index] = 1
        self.reserved -= count
        self.allocated += count
        return records(Unit, [(index, self._generations[index]) for index in indices])

    def release_many(self, units: Collection[Unit]) -> None:
        """Free allocated units: all of them, or none and the error of :meth:`release`."""
        live, generations = self._live, self._generations
        for unit in units:
            index, generation = unit
            known = 0 <= index < self.capacity and live[index]
            if not known or generations[index] != generation:
                self.validate(unit)
        if len(set(units)) < len(units):
            raise StaleHandleError(f"pool {self.name}: a unit was released twice at once")
        indices = [index for index, _ in units]
        for index in indices:
            live[index] = 0
            generations[index] += 1
        self.allocated -= len(indices)
        self._free += indices
        self._free.sort()

    def release(self, unit: Unit) -> None:
        """Free an allocated unit. Raises :class:`StaleHandleError` the second time."""
        self.validate(unit)
        self._live[unit.index] = 0
        self._generations[unit.index] += 1
        self.allocated -= 1
        insort(self._free, unit.index)

    def renew(self, unit: Unit) -> Unit:
        """The same unit under a new generation: earlier copies of ``unit`` become stale."""
        self.validate(unit)
        self._generations[unit.index] += 1
        return Unit(unit.index, self._generations[unit.index])

    def validate(self, unit: Unit) -> None:
        """Raise :class:`StaleHandleError` unless ``unit`` is allocated in this generation."""
        if not self.alive(unit):
            raise StaleHandleError(f"pool {self.name}: unit {unit.index} is not held as {unit}")

    def alive(self, unit: Unit) -> bool:
        return (
            0 <= unit.index < self.capacity
            and bool(self._live[unit.index])
            and self._generations[unit.index] == unit.generation
        )

    def keep_only(self, units: Collection[Unit]) -> int:
        """Free every allocated unit but ``units``; says how many."""
        lost = [unit for unit in self.live_units() if unit not in units]
        self.release_many(lost)
        return len(lost)

    def live_units(self) -> frozenset[Unit]:
        return frozenset(
            Unit(index, self._generations[index])
            for index in range(self.capacity)
            if self._live[index]
        )

    def check(self) -> None:
        live = sum(self._live)
        require(self.allocated == live, f"{self.name}: allocated counts the live units")
        require(self.reserved >= 0, f"{self.name}: reserved is not negative")
        require(self.available >= 0, f"{self.name}: allocated + reserved <= capacity")
        require(
            self._free == [i for i in range(self.capacity) if not self._live[i]],
            f"{self.name}: every unit is either free once or live",
        )
