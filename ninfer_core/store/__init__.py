"""The toolkit that Programs compose: who holds which page, slot and host byte, and who may write.

Pure bookkeeping. The store hands out page ids and slots, and lists the copies that its decisions
require; the Program owns the device memory and carries them out. Scarcity is a value
(:class:`Shortfalls`), a broken rule an engine failure. One thread mutates a store.
"""

from __future__ import annotations

from ninfer_core.contract.resources import PAGE_TOKENS
from ninfer_core.store.address_spaces import AddressSpaces, SpaceLease
from ninfer_core.store.block_tables import BlockTables
from ninfer_core.store.context_store import ContextStore, Occupancy, StoreLayout
from ninfer_core.store.demand import Demand, PoolShortfall, Shortfalls, combine
from ninfer_core.store.errors import (
    PermitViolationError,
    ProtectedRangeError,
    StaleHandleError,
    StoreInvariantError,
    TransitionError,
)
from ninfer_core.store.handles import Handle, HandleTable
from ninfer_core.store.histories import Frontiers, Histories, History, HistoryLease, HistoryPoint
from ninfer_core.store.host_arena import Extent, HostArena
from ninfer_core.store.instructions import ClearState, CopyPage, CopyState, TableDelta
from ninfer_core.store.logical_pages import LogicalPage, LogicalPages, pages_for
from ninfer_core.store.replicas import Replicas
from ninfer_core.store.reservations import Ledger, Reservation
from ninfer_core.store.space import Point, SpaceHandle, SpaceView
from ninfer_core.store.spaces import Footprint
from ninfer_core.store.state_slots import Slot, StateSlots
from ninfer_core.store.transactions import (
    LEGAL_EDGES,
    CopyTicket,
    Lease,
    Transaction,
    TransactionGate,
    TransactionState,
)
from ninfer_core.store.units import Plane, Unit, UnitPool

__all__ = [
    "LEGAL_EDGES",
    "PAGE_TOKENS",
    "AddressSpaces",
    "BlockTables",
    "ClearState",
    "ContextStore",
    "CopyPage",
    "CopyState",
    "CopyTicket",
    "Demand",
    "Extent",
    "Footprint",
    "Frontiers",
    "Handle",
    "HandleTable",
    "Histories",
    "History",
    "HistoryLease",
    "HistoryPoint",
    "HostArena",
    "Lease",
    "Ledger",
    "LogicalPage",
    "LogicalPages",
    "Occupancy",
    "PermitViolationError",
    "Plane",
    "Point",
    "PoolShortfall",
    "ProtectedRangeError",
    "Replicas",
    "Reservation",
    "Shortfalls",
    "Slot",
    "SpaceHandle",
    "SpaceLease",
    "SpaceView",
    "StaleHandleError",
    "StateSlots",
    "StoreInvariantError",
    "StoreLayout",
    "TableDelta",
    "Transaction",
    "TransactionGate",
    "TransactionState",
    "TransitionError",
    "Unit",
    "UnitPool",
    "combine",
    "pages_for",
]
