"""Lanes: one stream each, made by cuda.core, seen by torch and cupy, owned by the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache

import cupy
import torch
from cuda.core import Device as CoreDevice
from cuda.core import Stream

from ninfer_core.device.base import Event, LaneRole
from ninfer_core.device.cuda.errors import translated
from ninfer_core.device.cuda.keep import keep

BURST = 16
"""Launches from one mark of a :class:`Pace` to the next."""


@cache
def process_stream(index: int, role: LaneRole) -> Stream:
    """The stream of ``role`` on GPU ``index``, never destroyed.

    torch and cupy keep raw handles in thread-local state, graphs and allocators, and use them when
    their objects die, at interpreter exit too: a stream that went first would abort the process.
    """
    core_device = CoreDevice(index)
    core_device.set_current()
    stream = core_device.create_stream()
    keep(stream)
    return stream


class CudaEvent:
    """A point in a lane."""

    __slots__ = ("_device", "raw")

    def __init__(self, raw: torch.cuda.Event, device: str) -> None:
        self.raw = raw
        self._device = device

    def done(self) -> bool:
        try:
            return bool(self.raw.query())  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise translated(error, "asking an event", self._device) from error

    def wait(self) -> None:
        try:
            self.raw.synchronize()
        except RuntimeError as error:
            raise translated(error, "waiting for an event", self._device) from error


class Pace:
    """Keeps the launches that lie on a stream, not done yet, at ``2 * BURST`` or fewer.

    A launch into a full queue blocks inside the driver, with the interpreter's lock held, and would
    be where a lost GPU is met. A wait for an event gives the lock away and says what was lost.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._launches = 0
        self._mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._mark.record(stream)  # torch makes the event here, and none later

    def step(self) -> None:
        """Call before every launch. Raises what torch throws."""
        if self._launches % BURST == 0:
            self._mark.synchronize()
            self._mark.record(self._stream)
        self._launches += 1


class CudaLane:
    """See :class:`ninfer_core.device.base.Lane`.

    ``handle`` is the stream's address; ``torch_stream`` and ``cupy_stream`` are views of it.
    """

    def __init__(self, index: int, role: LaneRole) -> None:
        self.role = role
        self.device_name = f"cuda:{index}"
        self.stream = process_stream(index, role)
        self.handle: int = self.stream.__cuda_stream__()[1]
        self.torch_stream = torch.cuda.ExternalStream(self.handle, device=index)  # type: ignore[no-untyped-call]
        self.cupy_stream = cupy.cuda.Stream.from_external(self.stream)
        self.index = index
        self.pace = Pace(self.torch_stream)

    def enter(self) -> AbstractContextManager[None]:
        return self._entered()

    def record(self) -> CudaEvent:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        try:
            event.record(self.torch_stream)
        except RuntimeError as error:
            raise translated(error, f"recording on {self.role.value}", self.device_name) from error
        return CudaEvent(event, self.device_name)

    def wait_for(self, event: Event) -> None:
        if not isinstance(event, CudaEvent):
            event.wait()
            return
        try:
            self.torch_stream.wait_event(event.raw)
        except RuntimeError as error:
            raise translated(error, f"ordering {self.role.value}", self.device_name) from error

    def query(self) -> bool:
        try:
            return bool(self.torch_stream.query())
        except RuntimeError as error:
            raise translated(error, f"asking {self.role.value}", self.device_name) from error

    def synchronize(self) -> None:
        try:
            self.torch_stream.synchronize()
        except RuntimeError as error:
            raise translated(error, f"waiting for {self.role.value}", self.device_name) from error

    @contextmanager
    def _entered(self) -> Iterator[None]:
        # A thread's first driver call needs a current context; torch skips it for GPU 0.
        CoreDevice(self.index).set_current()
        with torch.cuda.stream(self.torch_stream), self.cupy_stream:
            yield
