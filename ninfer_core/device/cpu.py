"""The host's processor as a device: torch CPU tensors, work done when it is enqueued.

Lanes are always empty, events always done, and a graph is the recorded call, run again by a replay.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer_core.device.arena import Arenas, Block, BlockArena
from ninfer_core.device.base import (
    ALIGNMENT,
    Device,
    DeviceCounters,
    Event,
    Lane,
    LaneRole,
    MemoryFacts,
)
from ninfer_core.device.errors import LESS, DeviceError, DeviceUnavailable
from ninfer_core.device.host import available_memory, total_memory
from ninfer_core.device.transfer import check_upload
from ninfer_core.hookspecs.devices import DeviceFacts


def open_device(index: int = 0) -> Device:
    """The CPU device. Raises DeviceUnavailable for any index but 0."""
    if index:
        raise DeviceUnavailable(f"cpu:{index} does not exist", hint="there is only one cpu")
    return CpuDevice()


class CpuEvent:
    """A point that is always passed."""

    __slots__ = ()

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class CpuLane:
    """A queue that is always empty."""

    role: LaneRole

    def enter(self) -> AbstractContextManager[None]:
        return _entered()

    def record(self) -> CpuEvent:
        return CpuEvent()

    def wait_for(self, event: Event) -> None:
        event.wait()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


class CpuGraph:
    """A recorded call."""

    __slots__ = ("_body",)

    def __init__(self, body: Callable[[], None]) -> None:
        self._body: Callable[[], None] | None = body

    def replay(self) -> None:
        if self._body is None:
            raise DeviceError("a closed graph cannot be replayed")
        self._body()

    def close(self) -> None:
        self._body = None


class CpuDevice:
    """See :class:`ninfer_core.device.base.Device`."""

    def __init__(self) -> None:
        self.name = "cpu"
        self.torch_device = torch.device("cpu")
        self.facts = DeviceFacts(kind="cpu", model=_processor(), memory_bytes=self.memory().total)
        self._lanes = {role: CpuLane(role) for role in LaneRole}
        self._arenas = Arenas(self.name)
        self._graphs: list[CpuGraph] = []
        self._closed = False

    def explain(self, error: BaseException) -> DeviceError | None:
        return None

    def lane(self, role: LaneRole) -> CpuLane:
        return self._lanes[role]

    def arena(self, purpose: str, capacity: int) -> BlockArena:
        self._check_open()
        return self._arenas.add(purpose, capacity, _allocate)

    def pinned(self, purpose: str, capacity: int) -> BlockArena:
        return self.arena(purpose, capacity)

    def capture(self, body: Callable[[], None], lane: Lane) -> CpuGraph:
        self._check_open()
        self._graphs.append(CpuGraph(body))
        return self._graphs[-1]

    def upload(self, source: Tensor, target: Tensor, lane: Lane) -> None:
        self._check_open()
        check_upload(source, target, self.torch_device)
        target.copy_(source)

    def reserve_workspace(self, size: int) -> None:
        self._check_open()

    def memory(self) -> MemoryFacts:
        return MemoryFacts(total_memory(), available_memory())

    def counters(self) -> DeviceCounters:
        return DeviceCounters(len(self._arenas), self._arenas.takes(), len(self._graphs), 0)

    def synchronize(self) -> None:
        return None

    def close(self) -> None:
        for graph in self._graphs:
            graph.close()
        self._arenas.close()
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError(f"device {self.name} is closed")


@contextmanager
def _entered() -> Iterator[None]:
    yield


def _allocate(purpose: str, capacity: int) -> Block:
    """A block of bytes. Pages are not touched, so a block costs memory only as it is used."""
    try:
        return Block(torch.empty(capacity + ALIGNMENT, dtype=torch.uint8))
    except (RuntimeError, MemoryError) as error:
        raise DeviceError(
            f"arena {purpose!r} needs {capacity:,} bytes; {available_memory():,} are available",
            hint=LESS,
        ) from error


def _processor() -> str:
    return platform.processor() or platform.machine()
