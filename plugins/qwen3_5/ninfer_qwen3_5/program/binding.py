"""Making sequences out of root or of a checkpoint."""

from __future__ import annotations

import itertools

from ninfer_core.contract.checkpoints import BindRequest
from ninfer_core.contract.requests import CacheMode
from ninfer_core.contract.resources import CheckpointRef, ProgramLimits
from ninfer_core.store.demand import Demand, combine
from ninfer_core.store.histories import History
from ninfer_core.store.logical_pages import pages_for
from ninfer_core.store.reservations import Reservation
from ninfer_core.store.state_slots import Slot
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.program.checkpoints import Checkpoints
from ninfer_qwen3_5.program.draft_prices import prices_of
from ninfer_qwen3_5.program.reach import Reach
from ninfer_qwen3_5.program.sequence import Sequence, next_split
from ninfer_qwen3_5.program.steering import Steering
from ninfer_qwen3_5.program.stores import MAIN, STATE, Stores

Slots = tuple[Slot, ...]


class Binder:
    """Draws what a sequence needs and puts it together.

    ``keeps`` says that checkpoints are made at all: without it, prompts are cut into chunks as if
    they had no restore points.
    """

    def __init__(
        self,
        stores: Stores,
        state: ModelState,
        checkpoints: Checkpoints,
        limits: ProgramLimits,
        reach: Reach,
        keeps: bool,
    ) -> None:
        self._stores = stores
        self._state = state
        self._checkpoints = checkpoints
        self.chunk = limits.prefill_chunk
        self._prices = prices_of(limits)
        self._reach = reach
        self._keeps = keeps
        self._orders = itertools.count(1)

    def new_order(self) -> int:
        """A number that no binding had before."""
        return next(self._orders)

    def takes_part(self, request: BindRequest) -> bool:
        """Whether checkpoints may be made of it."""
        return self._keeps and request.prepared.request.cache.mode is CacheMode.READ_WRITE

    def reach_from(self, request: BindRequest, frontier: int) -> int:
        """The end of the first new unit of a resume that executed ``frontier`` tokens before."""
        if frontier >= request.prepared.length:
            return self._reach.of_round(request, frontier + 1)
        length = request.prepared.length
        stop = next_split(frontier, self.chunk, length, *self._points(request))
        return self._reach.of_round(request, stop) if stop == length else stop

    def demand(self, request: BindRequest, reach: int) -> Demand:
        """State slots and pages: up to ``reach`` for a sequence from root, for a checkpoint the
        page that its partial last one is copied to, and whatever must be loaded first."""
        slots = self._stores.slots_per_sequence
        if not isinstance(request.source, CheckpointRef):
            return Demand({STATE: slots, MAIN: pages_for(reach)})
        if request.consume:
            tail = self._checkpoints.consume_demand(request.source)
            return combine([Demand({STATE: slots - 1}), tail])
        return combine([Demand({STATE: slots}), self._checkpoints.fork_demand(request.source)])

    def create(self, request: BindRequest, grant: Reservation) -> Sequence:
        """A sequence at its beginning, or at the frontier of a checkpoint on the device."""
        order, row = self.new_order(), self._stores.take_row()
        history, slot = self._beginning(request, order, grant, row)
        ring = (slot, *self.spares(order, grant, row))
        return self.assembled(request, order, history, ring, row)

    def assembled(
        self, request: BindRequest, order: int, history: History, ring: Slots, row: int
    ) -> Sequence:
        """A sequence of parts that hold the beginning of its prompt."""
        self._stores.histories.bind_row(history, row)
        sequence = Sequence(request, order, history, ring, row)
        sequence.points = self._points(request)
        if self._prices is not None:
            sequence.steering = Steering(self._reach.drafts, self._prices.of(plain=sequence.plain))
        return sequence

    def spares(self, order: int, grant: Reservation, row: int) -> list[Slot]:
        """The slots of a ring but for the first."""
        return [
            self._stores.slots.receive(order, grant, near=self._stores.rows * turn + row)
            for turn in range(1, self._stores.slots_per_sequence)
        ]

    def _beginning(
        self, request: BindRequest, order: int, grant: Reservation, row: int
    ) -> tuple[History, Slot]:
        """Pages and state of a new sequence: a checkpoint's, or none and the initial one."""
        if isinstance(request.source, CheckpointRef):
            take = self._checkpoints.consume if request.consume else self._checkpoints.fork
            return take(request.source, order, grant, row)
        slot, clear = self._stores.slots.create(order, grant, near=row)
        self._state.clear_slot(clear.slot)
        return self._stores.histories.create(order), slot

    def _points(self, request: BindRequest) -> tuple[int, ...]:
        """Where the prompt's chunks end besides the regular places."""
        if not self.takes_part(request):
            return ()
        return tuple(point.frontier for point in request.prepared.restore_points)
