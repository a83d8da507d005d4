"""Copies of state images and KV pages between the device and pinned host memory, behind events."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.device.base import ALIGNMENT, LaneRole
from ninfer_core.device.errors import DeviceError, DeviceLost
from ninfer_core.ops.contracts.transfers import UnitPlanes, cut_image, image_bytes
from ninfer_core.ops.table import Ops
from ninfer_core.store.host_arena import Extent
from ninfer_qwen3_5.model.state import ModelState

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Arena, Device, Event, Lane

PLACES = 2
"""Transfers of one direction whose lists of moves may be on their way at once."""

_PIECE_WORDS = 4
_MOVE_WORDS = 2


def page_planes(state: ModelState) -> tuple[Tensor, ...]:
    """What a page extent holds, in this order: for each attention layer the page's keys, values
    and, where the format has them, key and value scales."""
    planes = [
        plane
        for cache in state.caches
        for plane in (cache.keys, cache.values, cache.key_scales, cache.value_scales)
    ]
    return tuple(plane for plane in planes if plane is not None)


def slot_planes(state: ModelState) -> tuple[Tensor, ...]:
    """What a state image holds, in this order: for each gated delta net the slot's convolution
    history and its recurrent state, then the hidden row that a drafter needs."""
    whole = state.recurrent
    planes = tuple(
        plane
        for history, recurrent in zip(whole.history, whole.recurrent, strict=True)
        for plane in (history, recurrent)
    )
    return planes if state.hidden is None else (*planes, state.hidden)


def no_faults(step: str) -> None:
    """Let every step of a transfer succeed."""


class Transfer:
    """Copies that were enqueued together: ``bytes`` of them. ``failure`` says why they are not
    whole; it is final once :meth:`done`, and even then what was enqueued has passed."""

    __slots__ = ("_event", "_faults", "_landed", "bytes", "failure")

    def __init__(
        self, event: Event, size: int, failure: DeviceError | None, faults: Callable[[str], None]
    ) -> None:
        self.bytes = size
        self.failure = failure
        self._event = event
        self._faults = faults
        self._landed = False

    def done(self) -> bool:
        """Whether the copies have passed; does not wait."""
        if not self._landed and self._event.done():
            self._land()
        return self._landed

    def wait(self) -> None:
        """Make the calling thread wait for the copies."""
        self._event.wait()
        self._land()

    def hold_back(self, lane: Lane) -> None:
        """Let later work of ``lane`` come after the copies."""
        lane.wait_for(self._event)

    def _land(self) -> None:
        if self._landed:
            return
        self._landed = True
        try:
            self._faults("landed")
        except DeviceError as error:
            self.failure = self.failure or error


@dataclass(slots=True)
class _Way:
    """One direction: its lane, its op, and pinned lists of moves i64[PLACES, most + 1, 2] with the
    events after which each may be written again."""

    lane: Lane
    op: Callable[[UnitPlanes, Tensor, Tensor], None]
    moves: Tensor
    busy: list[Event | None] = field(default_factory=lambda: [None] * PLACES)
    turn: int = 0

    def free_place(self) -> Tensor:
        self.turn = (self.turn + 1) % PLACES
        event = self.busy[self.turn]
        if event is not None:
            event.wait()
        return self.moves[self.turn]


class Transfers:
    """Enqueues copies on the copy lanes; on a device that computes when asked they are done then.

    A save comes after all that the compute lane was given before it; so does a load, since its
    destinations may have been freed by work that is still on its way. Nothing is allocated on the
    device or pinned per transfer. ``faults`` is called before the copy of a ``state``, before that
    of ``pages``, and when the transfer has ``landed``; a DeviceError that it raises fails the
    transfer there.
    """

    def __init__(
        self, ops: Ops, state: ModelState, device: Device, host: Tensor, most_pages: int
    ) -> None:
        self.faults: Callable[[str], None] = no_faults
        self.page_bytes = image_bytes(page_planes(state))
        self.slot_bytes = image_bytes(slot_planes(state))
        self.compute = device.lane(LaneRole.COMPUTE)
        self._host = host
        self._most = most_pages
        cuts = [(planes, cut_image(planes)) for planes in (page_planes(state), slot_planes(state))]
        words = sum(len(pieces) for _, pieces in cuts) * _PIECE_WORDS
        arena = device.arena("transfers", 8 * words + len(cuts) * ALIGNMENT)
        self._pages, self._slots = (
            _units(arena, f"pieces.{place}", planes, pieces)
            for place, (planes, pieces) in enumerate(cuts)
        )
        size = 8 * PLACES * (most_pages + 1) * _MOVE_WORDS
        pinned = device.pinned("moves", 2 * (size + ALIGNMENT))
        self._out = self._way(device, LaneRole.COPY_OUT, ops.gather_units, pinned)
        self._in = self._way(device, LaneRole.COPY_IN, ops.scatter_units, pinned)

    def save(self, slot: int | None, pages: Rows[int], extents: Rows[Extent]) -> Transfer:
        """Copy a state image and pages to the host: the slot's extent first, then the pages'.

        Raises EngineFailure for extents that do not fit, DeviceLost; any other error of the device
        is the transfer's ``failure``.
        """
        return self._start(self._out, slot, pages, extents)

    def load(self, slot: int | None, pages: Rows[int], extents: Rows[Extent]) -> Transfer:
        """The way back, into ``slot`` and ``pages``; as :meth:`save`. Their first use holds the
        compute lane back until the copies have passed (:meth:`Transfer.hold_back`)."""
        return self._start(self._in, slot, pages, extents)

    @property
    def host_bytes(self) -> int:
        """Bytes of the host memory in all."""
        return self._host.numel()

    @property
    def lane_in(self) -> Lane:
        return self._in.lane

    @property
    def lane_out(self) -> Lane:
        return self._out.lane

    def warm_up(self) -> None:
        """Move nothing by every op once, so that whatever compiles at a first call does so now."""
        for way in (self._out, self._in):
            with way.lane.enter():
                for units in (self._slots, self._pages):
                    way.op(units, way.moves[0][:0], self._host)
            way.lane.synchronize()

    def _way(self, device: Device, role: LaneRole, op: Callable[..., None], pinned: Arena) -> _Way:
        import torch

        shape = (PLACES, self._most + 1, _MOVE_WORDS)
        return _Way(device.lane(role), op, pinned.take(role.value, shape, torch.int64))

    def _start(
        self, way: _Way, slot: int | None, pages: Rows[int], extents: Rows[Extent]
    ) -> Transfer:
        import torch

        self._check(slot, pages, extents)
        units = [*([] if slot is None else [slot]), *pages]
        moves = way.free_place()[: len(units)]
        listed = [(unit, extent.offset) for unit, extent in zip(units, extents, strict=True)]
        moves.copy_(torch.tensor(listed, dtype=torch.int64).view(-1, _MOVE_WORDS))
        way.lane.wait_for(self.compute.record())
        failure = None
        try:
            with way.lane.enter(), torch.inference_mode():
                self._enqueue(way, slot is not None, moves)
        except DeviceLost:
            raise
        except DeviceError as error:
            failure = error
        event = way.busy[way.turn] = way.lane.record()
        size = len(pages) * self.page_bytes + (slot is not None) * self.slot_bytes
        return Transfer(event, size, failure, self.faults)

    def _enqueue(self, way: _Way, with_state: bool, moves: Tensor) -> None:
        if with_state:
            self.faults("state")
            way.op(self._slots, moves[:1], self._host)
        pages = moves[int(with_state) :]
        if len(pages):
            self.faults("pages")
            way.op(self._pages, pages, self._host)

    def _check(self, slot: int | None, pages: Rows[int], extents: Rows[Extent]) -> None:
        sizes = [*([] if slot is None else [self.slot_bytes]), *[self.page_bytes] * len(pages)]
        if len(pages) > self._most:
            raise EngineFailure(f"{len(pages)} pages in one transfer; {self._most} is the most")
        if len(extents) != len(sizes):
            raise EngineFailure(f"{len(extents)} host extents for {len(sizes)} images")
        short = [e for e, size in zip(extents, sizes, strict=True) if e.size < size]
        if short:
            raise EngineFailure(f"{short[0]} is too short for its image")


def _units(
    arena: Arena, name: str, planes: tuple[Tensor, ...], pieces: list[tuple[int, int, int, int]]
) -> UnitPlanes:
    import torch

    table = arena.take(name, (len(pieces), _PIECE_WORDS), torch.int64)
    table.copy_(torch.tensor(pieces, dtype=torch.int64))
    return UnitPlanes(planes, table)
