"""What a caller asks of several pools at once, and how a refusal says what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ninfer_core.contract.resources import Shortfall

_NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Demand:
    """Units (pages or state slots) by pool name, and host extents by size in bytes."""

    units: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    host_extents: tuple[int, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.host_extents and not any(self.units.values())


def combine(demands: Iterable[Demand]) -> Demand:
    """The demand that asks for all of ``demands`` together."""
    units: dict[str, int] = {}
    extents: list[int] = []
    for demand in demands:
        extents.extend(demand.host_extents)
        for pool, count in demand.units.items():
            units[pool] = units.get(pool, 0) + count
    return Demand(units, tuple(extents))


@dataclass(frozen=True, slots=True)
class PoolShortfall:
    """One axis that does not suffice.

    Units for a pool of pages or slots, bytes for the host arena. In an arena free bytes prove
    nothing, so ``largest`` gives its greatest contiguous extent; ``missing`` may then be 0.
    """

    pool: str
    needed: int
    available: int
    largest: int | None = None

    @property
    def missing(self) -> int:
        return max(0, self.needed - self.available)

    def refusal(self) -> Shortfall:
        """The same as the engine is told."""
        return Shortfall(self.pool, self.needed, self.available)


@dataclass(frozen=True, slots=True)
class Shortfalls:
    """Every axis that was short, in the ledger's pool order with the host last; nothing is held."""

    axes: tuple[PoolShortfall, ...]

    @property
    def first(self) -> PoolShortfall:
        return self.axes[0]

    def __str__(self) -> str:
        return ", ".join(f"{a.pool}: {a.needed} needed, {a.available} available" for a in self.axes)
