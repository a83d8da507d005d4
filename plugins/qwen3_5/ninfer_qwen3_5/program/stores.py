"""The ledgers of one Program in its own terms: one page pool, one slot pool, execution rows."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import (
    CapacitySummary,
    NeverFits,
    ResourceVector,
    Shortfall,
)
from ninfer_core.store.context_store import ContextStore, StoreLayout
from ninfer_core.store.demand import Demand, Shortfalls
from ninfer_core.store.histories import History
from ninfer_core.store.reservations import Reservation
from ninfer_core.store.units import Plane
from ninfer_qwen3_5.program.layout import Layout

if TYPE_CHECKING:
    from torch import Tensor

MAIN = "main"
STATE = "state_slots"


class Stores:
    """The context store, the free execution rows, and the contract's view of both."""

    def __init__(
        self,
        layout: Layout,
        tables: Tensor,
        page_bytes: int,
        slot_bytes: int,
        host_bytes: int = 0,
    ) -> None:
        storage = cast("Any", tables.numpy())
        self.context = ContextStore(
            StoreLayout(
                {MAIN: (Plane(MAIN, 0, layout.pages, page_bytes),)},
                {STATE: (Plane(STATE, 0, layout.slots, slot_bytes),)},
                layout.rows,
                layout.pages_per_sequence,
                host_bytes,
            ),
            {MAIN: storage},
        )
        self.slots = self.context.slots[STATE]
        self.histories = self.context.histories
        self.rows = layout.rows
        self.slots_per_sequence = layout.slots_per_sequence
        self.lane_slots = layout.rows * layout.slots_per_sequence
        self.lane_pages = layout.rows * layout.pages_per_sequence
        self._main = self.context.spaces[MAIN]
        tables_of_rows = self._main.tables
        assert tables_of_rows is not None
        self.tables = tables_of_rows
        self._free_rows = list(range(layout.rows))
        self.spare: Callable[[], int] = _nothing
        """Frees what is held without need and says how much; called before anything is refused."""

    def take_row(self) -> int:
        """The lowest free execution row: of block tables, token counts and sampling settings."""
        if not self._free_rows:
            raise EngineFailure("more sequences were bound than there are lanes")
        return heapq.heappop(self._free_rows)

    def give_row(self, row: int) -> None:
        heapq.heappush(self._free_rows, row)

    def growth(self, history: History, tokens: int) -> int:
        """Pages that ``history`` lacks to hold ``tokens``."""
        return self._main.growth(history.spaces[MAIN], tokens)

    def commit(self, history: History, frontier: int) -> None:
        """Keys and values below ``frontier`` are final."""
        self._main.commit(history.spaces[MAIN], frontier)

    def reserve(self, demand: Demand) -> Reservation | Shortfall | NeverFits:
        """All of ``demand`` or the first axis that lacks it."""
        ledger = self.context.ledger
        never = ledger.never_fits(demand)
        if never is not None:
            return never
        answer = ledger.reserve(demand)
        if isinstance(answer, Shortfalls) and self.spare():
            answer = ledger.reserve(demand)
        return answer if isinstance(answer, Reservation) else answer.first.refusal()

    def refusal(self, demand: Demand) -> Shortfall | NeverFits | None:
        """Why :meth:`reserve` would not grant ``demand`` now; None if it would."""
        ledger = self.context.ledger
        never = ledger.never_fits(demand)
        if never is not None:
            return never
        short = ledger.shortfall(demand)
        if short is not None and self.spare():
            short = ledger.shortfall(demand)
        return None if short is None else short.first.refusal()

    def capacity(self, resident: int, device_bytes: Mapping[str, int]) -> CapacitySummary:
        occupancy, arena = self.context.occupancy(), self.context.arena
        pages, slots = occupancy[MAIN], occupancy[STATE]
        return CapacitySummary(
            total=ResourceVector(
                state_slots=slots.capacity,
                host_bytes=arena.capacity,
                pages={MAIN: pages.capacity},
            ),
            available=ResourceVector(
                state_slots=slots.available,
                host_bytes=arena.free_bytes,
                pages={MAIN: pages.available},
            ),
            resident=resident,
            kept=ResourceVector(
                state_slots=slots.capacity - self.lane_slots,
                pages={MAIN: max(0, pages.capacity - self.lane_pages)},
            ),
            device_bytes=device_bytes,
        )


def vector(demand: Demand) -> ResourceVector:
    """A demand in the contract's terms."""
    return ResourceVector(
        state_slots=demand.units.get(STATE, 0),
        host_bytes=sum(demand.host_extents),
        pages={MAIN: demand.units.get(MAIN, 0)},
    )


def _nothing() -> int:
    return 0
