"""One GPU behind the device interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import cupy
import torch
from cuda.core import Device as CoreDevice
from torch import Tensor

from ninfer_core.device.arena import Arenas, BlockArena
from ninfer_core.device.base import DeviceCounters, Lane, LaneRole, MemoryFacts
from ninfer_core.device.cuda.errors import (
    is_from_cuda,
    is_out_of_memory,
    out_of_memory,
    translated,
    translating,
)
from ninfer_core.device.cuda.graphs import CudaGraph, capture
from ninfer_core.device.cuda.lanes import CudaLane
from ninfer_core.device.cuda.memory import device_block, device_memory, pinned_block
from ninfer_core.device.cuda.upload import Uploader
from ninfer_core.device.errors import DeviceError, DeviceLost
from ninfer_core.device.probe import GpuStatus
from ninfer_core.device.transfer import check_upload
from ninfer_core.hookspecs.devices import DeviceFacts

_SMALL_TENSOR = 1 << 20
"""Bytes up to which torch's allocator serves a tensor from 2 MiB segments of their own."""

_SMALL_TENSORS = 16
"""How many such tensors a workspace holds ready, beside its one large block."""


def _open_lanes(index: int) -> dict[LaneRole, CudaLane]:
    """Start CUDA on the calling thread and make the lanes; cuda.core has errors of its own."""
    try:
        CoreDevice(index).set_current()
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_device(index)
        return {role: CudaLane(index, role) for role in LaneRole}
    except Exception as error:
        raise translated(error, "being opened", f"cuda:{index}") from error


class CudaDevice:
    """See :class:`ninfer_core.device.base.Device`.

    Graphs share one memory pool: replays of one device run one after the other, and what outlives
    a replay is written to tensors of an arena.
    """

    def __init__(self, index: int, status: GpuStatus) -> None:
        self.name = f"cuda:{index}"
        self.torch_device = torch.device("cuda", index)
        self.facts = DeviceFacts(
            kind="cuda",
            model=status.name,
            compute_capability=status.capability,
            memory_bytes=status.memory_bytes,
        )
        self._index = index
        self._lanes = _open_lanes(index)
        self._arenas = Arenas(self.name)
        self._pinned: list[BlockArena] = []
        self._graphs: list[CudaGraph] = []
        self._uploader = Uploader(pinned_block(index))
        self._graph_pool = torch.cuda.graph_pool_handle()
        self._closed = False

    def explain(self, error: BaseException) -> DeviceError | None:
        """Errors of CUDA calls, of which a lost device makes most fail alike."""
        return translated(error, "working", self.name) if is_from_cuda(error) else None

    def lane(self, role: LaneRole) -> CudaLane:
        return self._lanes[role]

    def arena(self, purpose: str, capacity: int) -> BlockArena:
        self._check_open()
        return self._arenas.add(purpose, capacity, device_block(self._index))

    def pinned(self, purpose: str, capacity: int) -> BlockArena:
        self._check_open()
        self._pinned.append(self._arenas.add(purpose, capacity, pinned_block(self._index)))
        return self._pinned[-1]

    def capture(self, body: Callable[[], None], lane: Lane) -> CudaGraph:
        self._check_open()
        own = self._own(lane)
        if not any(graph.is_open for graph in self._graphs):
            # torch refuses a pool that all graphs have left.
            self._graph_pool = torch.cuda.graph_pool_handle()
        try:
            self._graphs.append(capture(body, own, self._graph_pool))
        except BaseException:
            self._graph_pool = torch.cuda.graph_pool_handle()
            raise
        return self._graphs[-1]

    def upload(self, source: Tensor, target: Tensor, lane: Lane) -> None:
        self._check_open()
        check_upload(source, target, self.torch_device)
        self._uploader.send(source, target, self._own(lane))

    def reserve_workspace(self, size: int) -> None:
        self._check_open()
        sizes = [size, *[_SMALL_TENSOR] * _SMALL_TENSORS]
        allocate = partial(torch.empty, dtype=torch.uint8, device=self.torch_device)
        try:
            with torch.cuda.stream(self._lanes[LaneRole.COMPUTE].torch_stream):
                held = [allocate(count) for count in sizes]
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise out_of_memory("the workspace", size, self.memory(), self.name) from error
            raise translated(error, "reserving the workspace", self.name) from error
        del held

    def memory(self) -> MemoryFacts:
        return device_memory(self._index)

    def counters(self) -> DeviceCounters:
        allocations = torch.cuda.memory_stats(self._index).get("num_device_alloc", 0)
        return DeviceCounters(
            len(self._arenas), self._arenas.takes(), len(self._graphs), int(allocations)
        )

    def synchronize(self) -> None:
        for lane in self._lanes.values():
            lane.synchronize()

    def close(self) -> None:
        """Release everything but the lanes' streams, which the process keeps.

        Graphs go first, then pinned memory, arenas and torch's cache; then the calling thread is
        back on torch's and cupy's default streams. A lost device is left as it is.
        """
        if self._closed:
            return
        self._closed = True
        failures: list[DeviceError] = []
        for release in self._releases():
            try:
                release()
            except DeviceLost:
                return
            except DeviceError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _releases(self) -> Iterator[Callable[[], None]]:
        yield self.synchronize
        yield from [graph.close for graph in self._graphs]
        yield self._uploader.close
        yield from [arena.close for arena in self._pinned]
        yield self._arenas.close
        yield self._leave

    def _leave(self) -> None:
        """Put the calling thread back on the default streams and empty torch's cache."""
        with translating("being closed", self.name):
            if torch.cuda.current_stream(self._index) in self._torch_streams():
                torch.cuda.set_stream(torch.cuda.default_stream(self._index))
                cupy.cuda.Stream.null.use()
            torch.cuda.empty_cache()

    def _torch_streams(self) -> list[torch.cuda.Stream]:
        return [lane.torch_stream for lane in self._lanes.values()]

    def _own(self, lane: Lane) -> CudaLane:
        if isinstance(lane, CudaLane) and self._lanes.get(lane.role) is lane:
            return lane
        raise DeviceError(f"that lane is not one of {self.name}")

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError(f"device {self.name} is closed")
