"""The ledgers of one Program: pages, state slots, execution rows, reservations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ninfer_core.contract.resources import (
    CapacitySummary,
    NeverFits,
    ResourceVector,
    Shortfall,
)
from ninfer_core.store.address_spaces import AddressSpaces
from ninfer_core.store.block_tables import BlockTables
from ninfer_core.store.demand import Demand
from ninfer_core.store.logical_pages import LogicalPages
from ninfer_core.store.reservations import Ledger, Reservation
from ninfer_core.store.units import Plane, UnitPool
from ninfer_qwen3_5.program.layout import Layout

if TYPE_CHECKING:
    from torch import Tensor

MAIN = "main"
STATE = "state_slots"
ROWS = "rows"


class Stores:
    """Names the pools and translates between the store's terms and the contract's."""

    def __init__(self, layout: Layout, tables: Tensor, page_bytes: int, slot_bytes: int) -> None:
        self.tables = tables
        self.pages = UnitPool(MAIN, [Plane(MAIN, 0, layout.pages, page_bytes)])
        self.slots = UnitPool(STATE, [Plane(STATE, 0, layout.slots, slot_bytes)])
        self.rows = UnitPool(ROWS, [Plane(ROWS, 0, layout.rows, 0)])
        self.ledger = Ledger([self.pages, self.slots, self.rows])
        self.spaces = AddressSpaces(
            LogicalPages(self.pages),
            BlockTables(layout.rows, layout.pages_per_sequence, cast("Any", tables.numpy())),
        )

    def reserve(self, demand: Demand) -> Reservation | Shortfall | NeverFits:
        """All of ``demand`` or the first axis that lacks it."""
        for name, count in demand.units.items():
            capacity = self.ledger.pool(name).capacity
            if count > capacity:
                return NeverFits(name, count, capacity)
        answer = self.ledger.reserve(demand)
        if isinstance(answer, Reservation):
            return answer
        axis = answer.axes[0]
        return Shortfall(axis.pool, axis.needed, axis.available)

    def capacity(self, resident: int, device_bytes: dict[str, int]) -> CapacitySummary:
        return CapacitySummary(
            total=ResourceVector(
                state_slots=self.slots.capacity, pages={MAIN: self.pages.capacity}
            ),
            available=ResourceVector(
                state_slots=self.slots.available, pages={MAIN: self.pages.available}
            ),
            resident=resident,
            device_bytes=device_bytes,
        )

    def check(self) -> None:
        """Raise StoreInvariantError if a ledger contradicts itself."""
        for part in (self.pages, self.slots, self.rows, self.ledger, self.spaces):
            part.check()


def vector(demand: Demand) -> ResourceVector:
    """A demand in the contract's terms; execution rows are not a resource of the engine."""
    return ResourceVector(
        state_slots=demand.units.get(STATE, 0), pages={MAIN: demand.units.get(MAIN, 0)}
    )
