"""Snapshots: paused sequences whose state and pages wait on the host, to go on where they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeGuard

from ninfer_core.contract.checkpoints import (
    BindRequest,
    Plan,
    PlanKind,
    ResumeKind,
    ResumeState,
)
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import NeverFits, ResourceVector, SequenceHandle, Shortfall
from ninfer_core.store.demand import Demand
from ninfer_core.store.handles import Handle, HandleTable
from ninfer_core.store.host_arena import Extent
from ninfer_core.store.logical_pages import LogicalPage
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.program.copying import CopyTransaction, Mover
from ninfer_qwen3_5.program.host_tier import HostTier
from ninfer_qwen3_5.program.sequence import Sequence
from ninfer_qwen3_5.program.snapshot_moves import Pausing, Resuming
from ninfer_qwen3_5.program.stores import MAIN, STATE, Stores, vector
from ninfer_qwen3_5.program.units import Units


class Residents(Protocol):
    """Who keeps the sequences that snapshots are made of and turn into."""

    @property
    def sequences(self) -> HandleTable[Sequence, SequenceHandle]: ...

    def new_order(self) -> int:
        """A number that no binding had before."""
        ...

    def reach_from(self, request: BindRequest, frontier: int) -> int:
        """Tokens that a resume must hold from the start, which executed ``frontier`` before."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The sequence as it stood, its history frozen at the frontier and all of it on the host, and
    the extent of its state image. The slots and the row that the sequence names are not its own
    any more."""

    sequence: Sequence
    image: Extent

    @property
    def reached(self) -> int:
        """The deepest frontier that it ever had."""
        return max(self.sequence.frontier, self.sequence.replay_to)


@dataclass(frozen=True, slots=True)
class SnapshotOf:
    """The plan to pause a resident sequence into a snapshot."""

    sequence: SequenceHandle


class Snapshots:
    """Makes them, gives them up, and makes them resident again."""

    def __init__(
        self,
        tier: HostTier,
        mover: Mover,
        stores: Stores,
        state: ModelState,
        units: Units,
        residents: Residents,
    ) -> None:
        self.tier = tier
        self._mover = mover
        self.stores = stores
        self.state = state
        self.units = units
        self.residents = residents
        self.table: HandleTable[Snapshot, Handle] = HandleTable("snapshot", Handle)

    def pause_demand(self, sequence: Sequence) -> Demand:
        """Host extents of the state image and of the pages that have none yet."""
        return self.tier.save_demand(sequence.history, sequence.frontier)

    def resume_demand(self, request: BindRequest) -> Demand:
        """State slots, a device page for each that has none, and those up to the end of the first
        new unit. What may be trimmed is trimmed before it is counted."""
        self.tier.trim()
        kept = self.get(request.source)
        history, at = kept.sequence.history, {MAIN: kept.sequence.frontier}
        pages = self.tier.load_units(history)
        pages += self.stores.growth(history, self.residents.reach_from(request, kept.reached))
        pages += self.stores.histories.activation_demand(history, at).units.get(MAIN, 0)
        return Demand({STATE: self.stores.slots_per_sequence, MAIN: pages})

    def plan_pause(self, handle: SequenceHandle) -> Plan | Shortfall | NeverFits:
        demand = self.pause_demand(self.residents.sequences.get(handle))
        refusal = self.stores.refusal(demand)
        return refusal or Plan(PlanKind.PAUSE, vector(demand), SnapshotOf(handle))

    def pause(self, handle: SequenceHandle, ended: Callable[[], None]) -> CopyTransaction:
        return self._mover.open(Pausing(self, handle), ended)

    def resume(self, request: BindRequest, ended: Callable[[], None]) -> CopyTransaction:
        return self._mover.open(Resuming(self, request), ended)

    def get(self, resume: object) -> Snapshot:
        """Raises StaleHandleError, an EngineFailure, for one that is gone."""
        if not isinstance(resume, ResumeState):
            raise EngineFailure(f"{resume!r} is no paused sequence")
        return self.table.get(resume)

    def keep(self, sequence: Sequence, image: Extent) -> ResumeState:
        """Take over a sequence of which all is on the host."""
        kept = Snapshot(sequence, image)
        self.tier.holders.hold(self._pages(kept), alone=True)
        made = self.table.insert(kept)
        return ResumeState(
            made.owner,
            made.index,
            made.generation,
            ResumeKind.SNAPSHOT,
            kept.reached,
            sequence.ledger_length,
            ResourceVector(host_bytes=self.tier.freed_bytes(sequence.history, image)),
        )

    def release(self, resume: ResumeState) -> Sequence:
        """Free all that a snapshot holds; what is left is its record."""
        kept = self.table.remove(resume)
        self._release(kept)
        return kept.sequence

    def resumed(self, resume: ResumeState, pages: Iterable[LogicalPage]) -> None:
        """A snapshot of ``pages`` is a sequence again; what it held on the host may go."""
        kept = self.table.remove(resume)
        self.tier.free(kept.image)
        self.tier.holders.unhold(pages, alone=True)

    def close(self) -> None:
        """Release every snapshot."""
        for kept in self.table.values():
            self._release(kept)
        self.table = HandleTable("snapshot", Handle)

    def held(self) -> Iterator[tuple[Iterable[LogicalPage], bool]]:
        """The pages of every snapshot, which is alone on the host."""
        return ((self._pages(kept), True) for kept in self.table.values())

    def _pages(self, kept: Snapshot) -> tuple[LogicalPage, ...]:
        return self.tier.pages(kept.sequence.history)

    def _release(self, kept: Snapshot) -> None:
        pages = self._pages(kept)
        self.stores.histories.release(kept.sequence.history)
        self.tier.free(kept.image)
        self.tier.holders.unhold(pages, alone=True)
        self.tier.drop_host(pages)


def is_snapshot(source: object) -> TypeGuard[ResumeState]:
    """Whether a request's source, or a paused state, is a snapshot."""
    return isinstance(source, ResumeState) and source.kind is ResumeKind.SNAPSHOT
