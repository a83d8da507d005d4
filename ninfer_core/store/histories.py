"""KV histories: the address spaces of one sequence over all page pools, moved together.

The pools of one history may stand at different frontiers (a drafter's lags the target's by one),
so every position here is a mapping from pool name to tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from ninfer_core.store.address_spaces import AddressSpaces, SpaceLease
from ninfer_core.store.demand import Demand
from ninfer_core.store.instructions import CopyPage
from ninfer_core.store.reservations import Reservation
from ninfer_core.store.space import Point, SpaceHandle

Frontiers = Mapping[str, int]
"""Tokens by pool name."""


@dataclass(frozen=True, slots=True)
class History:
    """One address space per page pool."""

    spaces: Mapping[str, SpaceHandle]


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """A restore point over all pools of one history."""

    points: Mapping[str, Point]


class HistoryLease:
    """Leases over all pools of one history; released together, once."""

    __slots__ = ("spaces",)

    def __init__(self, spaces: Mapping[str, SpaceLease]) -> None:
        self.spaces = spaces

    def release(self) -> None:
        for lease in self.spaces.values():
            lease.release()


class Histories:
    """Operations on histories; each has the meaning of the same one in :class:`AddressSpaces`."""

    def __init__(self, pools: Mapping[str, AddressSpaces]) -> None:
        self._pools = pools

    def create(self, owner: Hashable) -> History:
        return History({name: pool.create(owner) for name, pool in self._pools.items()})

    def growth(self, history: History, tokens: Frontiers) -> Demand:
        """What to reserve so that :meth:`ensure_mapped` can reach ``tokens``."""
        units = {n: self._pools[n].growth(history.spaces[n], t) for n, t in tokens.items()}
        return _demand(units)

    def ensure_mapped(self, history: History, tokens: Frontiers, grant: Reservation) -> None:
        for name, count in tokens.items():
            self._pools[name].ensure_mapped(history.spaces[name], count, grant)

    def commit(self, history: History, frontiers: Frontiers) -> None:
        for name, frontier in frontiers.items():
            self._pools[name].commit(history.spaces[name], frontier)

    def settle(self, history: History, grant: Reservation, keep: Frontiers | None = None) -> Demand:
        """End a unit: unmap the provisional suffix past ``keep``, return what was not drawn.

        ``keep`` names the tokens that a unit already launched ahead still writes.
        """
        for name, handle in history.spaces.items():
            self._pools[name].trim(handle, (keep or {}).get(name, 0))
        return grant.settle()

    def truncate(self, history: History, frontiers: Frontiers) -> None:
        for name, frontier in frontiers.items():
            self._pools[name].truncate(history.spaces[name], frontier)

    def bind_row(self, history: History, row: int) -> None:
        for name, handle in history.spaces.items():
            self._pools[name].bind_row(handle, row)

    def unbind_row(self, history: History) -> None:
        for name, handle in history.spaces.items():
            self._pools[name].unbind_row(handle)

    def protect(self, history: History, frontiers: Frontiers) -> HistoryPoint:
        handles = history.spaces
        return HistoryPoint(
            {n: self._pools[n].protect(handles[n], f) for n, f in frontiers.items()}
        )

    def unprotect(self, point: HistoryPoint) -> None:
        for name, part in point.points.items():
            self._pools[name].unprotect(part)

    def freeze(self, history: History) -> None:
        for name, handle in history.spaces.items():
            self._pools[name].freeze(handle)

    def activation_demand(self, history: History, frontiers: Frontiers) -> Demand:
        handles = history.spaces
        return _demand(
            {n: self._pools[n].activation_pages(handles[n], f) for n, f in frontiers.items()}
        )

    def activate(
        self, history: History, frontiers: Frontiers, grant: Reservation
    ) -> tuple[CopyPage, ...]:
        copies: list[CopyPage] = []
        for name, frontier in frontiers.items():
            copies += self._pools[name].activate(history.spaces[name], frontier, grant)
        return tuple(copies)

    def fork_demand(self, frontiers: Frontiers) -> Demand:
        return _demand({n: self._pools[n].fork_pages(f) for n, f in frontiers.items()})

    def fork(
        self, history: History, frontiers: Frontiers, owner: Hashable, grant: Reservation
    ) -> tuple[History, tuple[CopyPage, ...]]:
        spaces: dict[str, SpaceHandle] = {}
        copies: list[CopyPage] = []
        for name, frontier in frontiers.items():
            handle = history.spaces[name]
            spaces[name], copied = self._pools[name].fork(handle, frontier, owner, grant)
            copies += copied
        return History(spaces), tuple(copies)

    def share(self, history: History, frontiers: Frontiers, owner: Hashable) -> History:
        handles = history.spaces
        return History(
            {n: self._pools[n].share(handles[n], f, owner) for n, f in frontiers.items()}
        )

    def lease(self, history: History, frontiers: Frontiers) -> HistoryLease:
        handles = history.spaces
        return HistoryLease({n: self._pools[n].lease(handles[n], f) for n, f in frontiers.items()})

    def release(self, history: History) -> None:
        for name, handle in history.spaces.items():
            self._pools[name].release(handle)


def _demand(units: dict[str, int]) -> Demand:
    return Demand({name: count for name, count in units.items() if count})
