"""The host's processor as a device: torch CPU tensors, work done when it is enqueued.

Lanes are always empty, events always done, and a graph is the recorded call, run again by a replay.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from ninfer_core.device.base import (
    ALIGNMENT,
    Device,
    DeviceCounters,
    Event,
    Extent,
    Lane,
    LaneRole,
    MemoryFacts,
)
from ninfer_core.device.errors import ArenaExhausted, DeviceError, DeviceUnavailable
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

    def synchronize(self) -> None:
        return None


class CpuArena:
    """One uint8 tensor, cut up in order."""

    __slots__ = ("_base", "_block", "_layout", "_used", "capacity", "purpose")

    def __init__(self, purpose: str, capacity: int) -> None:
        self.purpose = purpose
        self.capacity = capacity
        self._block: Tensor | None = _allocate(purpose, capacity + ALIGNMENT)
        self._base = -self._block.data_ptr() % ALIGNMENT
        self._used = 0
        self._layout: dict[str, Extent] = {}

    @property
    def free(self) -> int:
        return self.capacity - self._used

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if self._block is None:
            raise DeviceError(f"arena {self.purpose!r} is closed; {name!r} cannot be taken")
        if name in self._layout:
            raise DeviceError(f"arena {self.purpose!r} already has a tensor {name!r}")
        if any(size < 0 for size in shape):
            raise DeviceError(f"{name!r} has a negative size: {list(shape)}")
        extent = self._place(name, prod(shape) * dtype.itemsize)
        self._layout[name] = extent
        self._used = extent.offset + extent.length
        start = self._base + extent.offset
        return self._block[start : start + extent.length].view(dtype).view(tuple(shape))

    def layout(self) -> Mapping[str, Extent]:
        return MappingProxyType(self._layout)

    def close(self) -> None:
        self._block = None

    def _place(self, name: str, length: int) -> Extent:
        offset = -(-self._used // ALIGNMENT) * ALIGNMENT
        if offset + length > self.capacity:
            raise ArenaExhausted(
                f"arena {self.purpose!r} of {self.capacity:,} bytes has "
                f"{max(0, self.capacity - offset):,} left; {name!r} needs {length:,}"
            )
        return Extent(offset, length)


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
        self._arenas: dict[str, CpuArena] = {}
        self._graphs: list[CpuGraph] = []
        self._closed = False

    def lane(self, role: LaneRole) -> CpuLane:
        return self._lanes[role]

    def arena(self, purpose: str, capacity: int) -> CpuArena:
        self._check_open()
        if purpose in self._arenas:
            raise DeviceError(f"{self.name} already has an arena {purpose!r}")
        self._arenas[purpose] = CpuArena(purpose, capacity)
        return self._arenas[purpose]

    def pinned(self, purpose: str, capacity: int) -> CpuArena:
        return self.arena(purpose, capacity)

    def capture(self, body: Callable[[], None], lane: Lane) -> CpuGraph:
        self._check_open()
        self._graphs.append(CpuGraph(body))
        return self._graphs[-1]

    def memory(self) -> MemoryFacts:
        return MemoryFacts(_total_memory(), _available_memory())

    def counters(self) -> DeviceCounters:
        takes = sum(len(arena.layout()) for arena in self._arenas.values())
        return DeviceCounters(len(self._arenas), takes, len(self._graphs))

    def synchronize(self) -> None:
        return None

    def close(self) -> None:
        for graph in self._graphs:
            graph.close()
        for arena in self._arenas.values():
            arena.close()
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError(f"device {self.name} is closed")


@contextmanager
def _entered() -> Iterator[None]:
    yield


def _allocate(purpose: str, size: int) -> Tensor:
    """A block of bytes. Pages are not touched, so a block costs memory only as it is used."""
    if size < ALIGNMENT:
        raise DeviceError(f"arena {purpose!r} cannot have {size - ALIGNMENT:,} bytes")
    try:
        return torch.empty(size, dtype=torch.uint8)
    except (RuntimeError, MemoryError) as error:
        raise DeviceError(
            f"arena {purpose!r} needs {size:,} bytes; {_available_memory():,} are available"
        ) from error


def _total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _available_memory() -> int:
    """What can be had without swapping, or all memory where the kernel does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):
        return _total_memory()


def _processor() -> str:
    return platform.processor() or platform.machine()
