"""Reservations over several pools: all axes or none, drawn from, then settled once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from ninfer_core.contract.resources import NeverFits
from ninfer_core.contract.single_use import SingleUse
from ninfer_core.store.demand import Demand, PoolShortfall, Shortfalls
from ninfer_core.store.errors import PermitViolationError, require
from ninfer_core.store.host_arena import Extent, HostArena
from ninfer_core.store.units import Unit, UnitPool


class Reservation(SingleUse):
    """Units and host extents promised to one caller (single use: :meth:`settle`).

    What is drawn belongs to whoever drew it; what is left returns at the settlement.
    """

    __slots__ = ("_extents", "_ledger", "_units")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger
        self._units: dict[str, int] = {}
        self._extents: list[Extent] = []

    def remaining(self, pool: str) -> int:
        """Units of ``pool`` that can still be drawn."""
        return self._units.get(pool, 0)

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Host extents that can still be drawn, in the order asked for."""
        return tuple(self._extents)

    def draw(self, pool: str, near: int = 0) -> Unit:
        """One unit, from ``near`` on if there is one.

        Raises :class:`PermitViolationError` past the promise or after settlement.
        """
        left = self._units.get(pool, 0)
        if not left:
            raise PermitViolationError(f"nothing of pool {pool!r} is left in this reservation")
        self._units[pool] = left - 1
        return self._ledger.pool(pool).draw(near)

    def draw_many(self, pool: str, count: int) -> list[Unit]:
        """The same as so many times :meth:`draw`, or nothing and the error."""
        left = self._units.get(pool, 0)
        if left < count:
            raise PermitViolationError(f"{count} of pool {pool!r} were drawn; {left} are left")
        self._units[pool] = left - count
        return self._ledger.pool(pool).draw_many(count)

    def draw_extent(self) -> Extent:
        """The next host extent, in the order asked for."""
        return self.draw_extents(1)[0]

    def draw_extents(self, count: int) -> list[Extent]:
        """The next so many, or none and the error."""
        if count > len(self._extents):
            raise PermitViolationError(
                f"no host extent is left in this reservation: {count} were drawn of "
                f"{len(self._extents)}"
            )
        drawn, self._extents = self._extents[:count], self._extents[count:]
        return drawn

    def settle(self) -> Demand:
        """Return what was not drawn and say how much that was. A second call raises."""
        self.consume()
        return self._ledger._take_back(self)


class Ledger:
    """Grants reservations over the unit pools of one store and its host arena."""

    def __init__(self, pools: Iterable[UnitPool], arena: HostArena | None = None) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._arena = arena
        self._open: dict[int, Reservation] = {}

    def pool(self, name: str) -> UnitPool:
        try:
            return self._pools[name]
        except KeyError:
            known = ", ".join(self._pools)
            raise PermitViolationError(f"no pool is named {name!r}; there are: {known}") from None

    def reserve(self, demand: Demand) -> Reservation | Shortfalls:
        """Grant all of ``demand``, or name every axis that is short and hold nothing."""
        reservation = Reservation(self)
        short = self._grant(reservation, demand)
        if short is not None:
            return short
        self._open[id(reservation)] = reservation
        return reservation

    def extend(self, reservation: Reservation, demand: Demand) -> Shortfalls | None:
        """Add ``demand`` to an open reservation, all of it or nothing."""
        if self._open.get(id(reservation)) is not reservation:
            raise PermitViolationError("the reservation is settled or of another ledger")
        return self._grant(reservation, demand)

    def shortfall(self, demand: Demand) -> Shortfalls | None:
        """What :meth:`reserve` would answer now, without holding anything."""
        short = self._short_units(demand.units)
        arena = self._arena_for(demand.host_extents)
        host_short = arena is not None and not arena.fits(demand.host_extents)
        if short or host_short:
            return self._shortfall(short, demand.host_extents, host_short)
        return None

    def never_fits(self, demand: Demand) -> NeverFits | None:
        """The first axis of which ``demand`` asks more than exists at all."""
        for name, count in demand.units.items():
            if count > self.pool(name).capacity:
                return NeverFits(name, count, self.pool(name).capacity)
        host = self._arena
        if host is not None and demand.host_extents:
            needed = _charged(host, demand.host_extents)
            if needed > host.capacity:
                return NeverFits(host.name, needed, host.capacity)
        return None

    def check(self) -> None:
        """Every promise in a pool is held by exactly one open reservation."""
        for name, pool in self._pools.items():
            promised = sum(r.remaining(name) for r in self._open.values())
            require(
                pool.reserved == promised,
                f"{name}: {pool.reserved} reserved, open reservations hold {promised}",
            )
        held = [extent for r in self._open.values() for extent in r.extents]
        require(len(held) == len(set(held)), "a host extent is promised once")
        for extent in held:
            alive = self._arena is not None and self._arena.alive(extent)
            require(alive, f"the promised host extent {extent} is allocated")

    @property
    def open_reservations(self) -> int:
        return len(self._open)

    def promised_extents(self) -> frozenset[Extent]:
        """Host extents that are charged but not drawn yet."""
        return frozenset(extent for r in self._open.values() for extent in r.extents)

    def _grant(self, reservation: Reservation, demand: Demand) -> Shortfalls | None:
        short = self._short_units(demand.units)
        extents = self._allocate(demand.host_extents)
        if extents is None or short:
            self._free(extents or [])
            return self._shortfall(short, demand.host_extents, extents is None)
        for name, count in demand.units.items():
            self._pools[name].reserve(count)
            reservation._units[name] = reservation._units.get(name, 0) + count
        reservation._extents += extents
        return None

    def _take_back(self, reservation: Reservation) -> Demand:
        del self._open[id(reservation)]
        units = {name: left for name, left in reservation._units.items() if left}
        for name, left in units.items():
            self._pools[name].unreserve(left)
        sizes = tuple(extent.size for extent in reservation._extents)
        self._free(reservation._extents)
        reservation._units = {}
        reservation._extents = []
        return Demand(units, sizes)

    def _short_units(self, units: Mapping[str, int]) -> list[PoolShortfall]:
        if any(count < 0 for count in units.values()):
            raise PermitViolationError(f"a demand counts units from 0 up: {dict(units)}")
        wanted = [(self.pool(name), count) for name, count in units.items()]
        return [
            PoolShortfall(pool.name, count, pool.available)
            for pool, count in wanted
            if count > pool.available
        ]

    def _shortfall(
        self, short: list[PoolShortfall], sizes: tuple[int, ...], host_short: bool
    ) -> Shortfalls:
        order = list(self._pools)
        short.sort(key=lambda axis: order.index(axis.pool))
        if host_short and self._arena is not None:
            arena = self._arena
            needed = _charged(arena, sizes)
            short.append(
                PoolShortfall(arena.name, needed, arena.free_bytes, largest=arena.largest_free)
            )
        return Shortfalls(tuple(short))

    def _allocate(self, sizes: tuple[int, ...]) -> list[Extent] | None:
        arena = self._arena_for(sizes)
        extents: list[Extent] = []
        if arena is None:
            return extents
        for size, run in groupby(sizes):
            some = arena.allocate_many(size, sum(1 for _ in run))
            if some is None:
                self._free(extents)
                return None
            extents += some
        return extents

    def _arena_for(self, sizes: tuple[int, ...]) -> HostArena | None:
        """The arena that gives extents of ``sizes``; None where there are none."""
        if not sizes:
            return None
        if self._arena is None:
            raise PermitViolationError("host extents were asked of a store without a host arena")
        if min(sizes) <= 0:
            raise PermitViolationError(f"a demand's host extents have 1 byte or more: {sizes}")
        return self._arena

    def _free(self, extents: list[Extent]) -> None:
        if self._arena is not None:
            self._arena.free_many(extents)


def _charged(arena: HostArena, sizes: Iterable[int]) -> int:
    """Bytes that extents of ``sizes`` are charged together."""
    return sum(arena.rounded(size) * sum(1 for _ in run) for size, run in groupby(sizes))
