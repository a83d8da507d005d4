"""The whole store of one Program: pools, spaces, slots, host arena and ledger, built together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ninfer_core.store.address_spaces import AddressSpaces
from ninfer_core.store.block_tables import BlockTables
from ninfer_core.store.errors import require
from ninfer_core.store.histories import Histories, History
from ninfer_core.store.host_arena import Extent, HostArena
from ninfer_core.store.logical_pages import LogicalPages
from ninfer_core.store.replicas import Replicas
from ninfer_core.store.reservations import Ledger
from ninfer_core.store.state_slots import Slot, StateSlots
from ninfer_core.store.units import Plane, UnitPool

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Pools by name with their planes, table shape, and the host arena's size.

    ``table_rows`` execution rows of ``table_columns`` pages each, per page pool; ``host_bytes`` 0
    means that there is no host tier.
    """

    page_pools: Mapping[str, tuple[Plane, ...]]
    slot_pools: Mapping[str, tuple[Plane, ...]]
    table_rows: int
    table_columns: int
    host_bytes: int = 0
    host_alignment: int = 256


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Units of a pool, or bytes of the host arena; the last three add up to the first."""

    capacity: int
    allocated: int
    reserved: int
    available: int


class ContextStore:
    """One instance of every part over one layout.

    ``tables`` may give each page pool's block table a buffer of its own (i32[rows, columns]), so
    that the table lies where kernels read it.
    """

    def __init__(
        self, layout: StoreLayout, tables: Mapping[str, WriteableBuffer] | None = None
    ) -> None:
        given = tables or {}
        self.layout = layout
        self.arena = HostArena("host_bytes", layout.host_bytes, layout.host_alignment)
        self.spaces: Mapping[str, AddressSpaces] = MappingProxyType(
            {n: self._spaces(n, p, given.get(n)) for n, p in layout.page_pools.items()}
        )
        self.slots: Mapping[str, StateSlots] = MappingProxyType(
            {n: StateSlots(UnitPool(n, planes)) for n, planes in layout.slot_pools.items()}
        )
        self.replicas: Mapping[str, Replicas] = MappingProxyType(
            {name: Replicas(spaces.pages, self.arena) for name, spaces in self.spaces.items()}
        )
        self.histories = Histories(self.spaces)
        self.ledger = Ledger(self._pools(), self.arena)

    def occupancy(self) -> Mapping[str, Occupancy]:
        """By pool name in ledger order (slots, pages), then the host arena in bytes."""
        table = {
            p.name: Occupancy(p.capacity, p.allocated, p.reserved, p.available)
            for p in self._pools()
        }
        promised = sum(extent.size for extent in self.ledger.promised_extents())
        arena = self.arena
        table[arena.name] = Occupancy(
            arena.capacity, arena.used_bytes - promised, promised, arena.free_bytes
        )
        return table

    @property
    def idle(self) -> bool:
        """Nothing is allocated and nothing is promised."""
        return all(o.available == o.capacity for o in self.occupancy().values())

    def keep_only(
        self, frozen: Iterable[History], slots: Collection[Slot], extents: Collection[Extent]
    ) -> None:
        """Rebuild the ledgers from what lives: active spaces, live state images, open reservations
        and copies, and of what is frozen, published or on the host only these histories, slots and
        extents, the pages of those histories included. All else is given back, also what nobody
        knew of any more. :meth:`check` says afterwards whether what lives was sound.
        """
        histories = list(frozen)
        for name, spaces in self.spaces.items():
            spaces.keep_only([history.spaces[name] for history in histories])
        for pool in self.slots.values():
            pool.keep_only(slots)
        pages = [page for spaces in self.spaces.values() for page in spaces.pages.live_pages()]
        on_host = {page.host.location for page in pages if page.host is not None}
        self.arena.keep_only(on_host.union(extents, self.ledger.promised_extents()))

    def check(self) -> None:
        """Raise :class:`~ninfer_core.store.errors.StoreInvariantError` on the first breach."""
        for pool in self._pools():
            pool.check()
        for slots in self.slots.values():
            slots.check()
        for spaces in self.spaces.values():
            spaces.check()
        self.arena.check()
        self.ledger.check()
        self._check_host_pages()

    def _check_host_pages(self) -> None:
        pages = [page for spaces in self.spaces.values() for page in spaces.pages.live_pages()]
        extents = [page.host.location for page in pages if page.host is not None]
        require(len(extents) == len(set(extents)), "a host extent carries one page")
        live, promised = self.arena.live_extents(), self.ledger.promised_extents()
        for extent in extents:
            require(extent in live and extent not in promised, f"{extent} of a page is allocated")

    def _pools(self) -> tuple[UnitPool, ...]:
        slots = tuple(slots.pool for slots in self.slots.values())
        return slots + tuple(spaces.pool for spaces in self.spaces.values())

    def _spaces(
        self, name: str, planes: tuple[Plane, ...], storage: WriteableBuffer | None
    ) -> AddressSpaces:
        pages = LogicalPages(UnitPool(name, planes), self.arena)
        tables = BlockTables(self.layout.table_rows, self.layout.table_columns, storage)
        return AddressSpaces(pages, tables)
