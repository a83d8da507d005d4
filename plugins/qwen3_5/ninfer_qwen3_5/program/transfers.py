"""Copies of state images and KV pages between the device and pinned host memory, behind events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.device.base import LaneRole
from ninfer_core.device.errors import DeviceError, DeviceLost
from ninfer_core.ops.contracts.transfers import UnitPlanes, image_bytes, unit_planes
from ninfer_core.ops.table import Ops
from ninfer_core.store.host_arena import Extent
from ninfer_qwen3_5.model.state import ModelState

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Device, Event, Lane

PART_COPIES = 256
"""Copies that are enqueued at once: each costs the host some us, and rounds must be launched."""

PART_PAGES = 128
"""Pages of them at most: the copies of one part should last for as long as a round."""

FIRST_PAGES = 32
"""The same beside a state. A first part is enqueued where a transaction has most to do, and waits
for the round that runs then: it has to last until the next one is launched."""

PARTS = 3
"""Parts that may be on their way at once: a stream's queue has an end, and blocks there."""


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
    """Copies that belong together: ``bytes`` of them. They are enqueued part by part, the first at
    once and the others when somebody asks. ``failure`` says why they are not whole; it is final
    once :meth:`done`, and even then what was enqueued has passed."""

    __slots__ = ("_events", "_faults", "_landed", "_lane", "_parts", "bytes", "failure")

    def __init__(
        self,
        lane: Lane,
        parts: Iterable[Callable[[], None]],
        size: int,
        faults: Callable[[str], None],
    ) -> None:
        self.bytes = size
        self.failure: DeviceError | None = None
        self._lane = lane
        self._parts = deque(parts)
        self._events: deque[Event] = deque(maxlen=PARTS)
        self._faults = faults
        self._landed = False
        self._go_on()

    def done(self) -> bool:
        """Whether the copies have passed; does not wait."""
        if not self._landed:
            if self._parts and (len(self._events) < PARTS or self._events[0].done()):
                self._go_on()
            if not self._parts and self._events[-1].done():
                self._land()
        return self._landed

    def wait(self) -> None:
        """Make the calling thread wait for the copies."""
        self._enqueue_all()
        self._events[-1].wait()
        self._land()

    def hold_back(self, lane: Lane) -> None:
        """Let later work of ``lane`` come after the copies."""
        self._enqueue_all()
        lane.wait_for(self._events[-1])

    def _enqueue_all(self) -> None:
        while self._parts:
            self._go_on()

    def _go_on(self) -> None:
        """Enqueue the next part. One that fails is the last. Raises DeviceLost."""
        try:
            if self._parts:
                self._parts.popleft()()
        except DeviceLost:
            raise
        except DeviceError as error:
            self.failure = error
            self._parts.clear()
        self._events.append(self._lane.record())

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
    """One direction: its lane and its op."""

    lane: Lane
    op: Callable[[UnitPlanes, Tensor, Tensor], None]


class Transfers:
    """Enqueues copies on the copy lanes; on a device that computes when asked they are done then.

    A save comes after all that the compute lane was given before it; so does a load, since its
    destinations may have been freed by work that is still on its way. Nothing is allocated on the
    device or pinned per transfer. ``faults`` is called before the copy of a ``state``, before each
    part of the ``pages``, and when the transfer has ``landed``; a DeviceError that it raises fails
    the transfer there.
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
        self._pages, self._slots = unit_planes(page_planes(state)), unit_planes(slot_planes(state))
        self._out = _Way(device.lane(LaneRole.COPY_OUT), ops.gather_units)
        self._in = _Way(device.lane(LaneRole.COPY_IN), ops.scatter_units)

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

    def _start(
        self, way: _Way, slot: int | None, pages: Rows[int], extents: Rows[Extent]
    ) -> Transfer:
        import numpy as np
        import torch

        self._check(slot, pages, extents)
        units = [*([] if slot is None else [slot]), *pages]
        places = [extent.offset for extent in extents]
        moves = torch.from_numpy(np.array([units, places], np.int64).T.copy())
        state, rest = moves[: slot is not None], moves[slot is not None :]
        most = max(1, min(PART_PAGES, PART_COPIES // len(self._pages.runs)))
        first = most if slot is None else min(most, FIRST_PAGES)
        parts = [partial(self._enqueue, way, state, rest[:first])]
        for start in range(first, len(rest), most):
            some = rest[start : start + most]
            parts.append(partial(self._enqueue, way, moves[:0], some))
        way.lane.wait_for(self.compute.record())
        size = len(pages) * self.page_bytes + (slot is not None) * self.slot_bytes
        return Transfer(way.lane, parts, size, self.faults)

    def _enqueue(self, way: _Way, state: Tensor, pages: Tensor) -> None:
        import torch

        with way.lane.enter(), torch.inference_mode():
            for step, units, moves in (
                ("state", self._slots, state),
                ("pages", self._pages, pages),
            ):
                if len(moves):
                    self.faults(step)
                    way.op(units, moves, self._host)

    def _check(self, slot: int | None, pages: Rows[int], extents: Rows[Extent]) -> None:
        images = len(pages) + (slot is not None)
        if len(pages) > self._most:
            raise EngineFailure(f"{len(pages)} pages in one transfer; {self._most} is the most")
        if len(extents) != images:
            raise EngineFailure(f"{len(extents)} host extents for {images} images")
        first = images - len(pages)
        short = [extent for extent in extents[:first] if extent.size < self.slot_bytes]
        short += [extent for extent in extents[first:] if extent.size < self.page_bytes]
        if short:
            raise EngineFailure(f"{short[0]} is too short for its image")
