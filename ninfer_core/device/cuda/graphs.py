"""Graphs: captured by torch, launched by the driver."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from ninfer_core.device.cuda.errors import (
    LOST,
    failed_call,
    is_from_cuda,
    is_out_of_memory,
    translated,
    translating,
)
from ninfer_core.device.cuda.keep import keep, let_go
from ninfer_core.device.cuda.lanes import CudaLane
from ninfer_core.device.cuda.memory import device_memory
from ninfer_core.device.driver import driver
from ninfer_core.device.errors import DeviceError

DRIVER_LAUNCH = "cuGraphLaunch"
TORCH_REPLAY = "torch replay"


class CudaGraph:
    """See :class:`ninfer_core.device.base.Graph`.

    ``launch_path`` says how a replay is launched: :data:`DRIVER_LAUNCH`, or :data:`TORCH_REPLAY`
    where this torch does not hand out the executable. A graph that is not closed is kept until the
    process ends.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, lane: CudaLane) -> None:
        self._graph: torch.cuda.CUDAGraph | None = graph
        self._device = lane.device_name
        self._pace = lane.pace
        self.launch_path, self._launch = _launcher(graph, lane)
        keep(graph)

    def replay(self) -> None:
        try:
            self._pace.step()
        except RuntimeError as error:
            raise translated(error, "replaying a graph", self._device) from error
        code = self._launch()
        if code:
            raise failed_call(code, "replaying a graph", self._device)

    @property
    def is_open(self) -> bool:
        """Whether it can be replayed."""
        return self._graph is not None

    def close(self) -> None:
        graph, self._graph = self._graph, None
        if graph is None:
            return
        self._launch = _refuse
        with translating("releasing a graph", self._device):
            graph.reset()
        let_go(graph)


def capture(body: Callable[[], object], lane: CudaLane, pool: Any) -> CudaGraph:
    """Capture what ``body`` enqueues on ``lane``; its intermediate tensors lie in ``pool``.

    torch's own context manager is left aside: it empties the allocator's cache first, and with it
    the workspace that was reserved. Raises DeviceError; what ``body`` raises on its own account
    passes through. After either, ``pool`` can take no further capture: a capture that did not end
    stays in torch's allocator of pinned memory, from which nothing takes it out.
    """
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    lane.synchronize()
    try:
        with lane.enter(), _no_collection():
            _record(body, graph, pool, lane.index)
        graph.instantiate()
        return CudaGraph(graph, lane)
    except BaseException as error:
        keep(graph)  # torch's allocators may go on asking it whether it captures
        if not is_from_cuda(error):
            raise
        raise _refusal(error, lane) from error


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the collector from freeing device memory in the middle of a capture, which ends it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _record(body: Callable[[], object], graph: torch.cuda.CUDAGraph, pool: Any, index: int) -> None:
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        body()
    except BaseException:
        _abandon(graph, pool, index)
        raise
    try:
        graph.capture_end()
    except BaseException:
        _abandon(graph, pool, index)
        raise


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any, index: int) -> None:
    """End a capture that failed: torch's allocator of device memory would serve the pool for ever.

    Whatever had ended already says so by an error.
    """
    with suppress(RuntimeError):
        graph.capture_end()
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(index, pool)


def _refusal(error: BaseException, lane: CudaLane) -> DeviceError:
    if is_out_of_memory(error):
        memory = device_memory(lane.index)
        return DeviceError(
            f"capturing a graph ran out of memory: {memory.free:,} of {memory.total:,} bytes are "
            f"free on {lane.device_name}"
        )
    return translated(error, "capturing a graph", lane.device_name)


def offers_executable(graph: torch.cuda.CUDAGraph) -> bool:
    """Whether this torch hands out the executable of a graph."""
    return hasattr(graph, "raw_cuda_graph_exec")


def _launcher(graph: torch.cuda.CUDAGraph, lane: CudaLane) -> tuple[str, Callable[[], int]]:
    if not offers_executable(graph):
        return TORCH_REPLAY, lambda: _replay(graph, lane)
    executable = int(graph.raw_cuda_graph_exec())
    driver().upload_graph(executable, lane.handle)
    return DRIVER_LAUNCH, driver().launcher(executable, lane.handle, LOST)


def _replay(graph: torch.cuda.CUDAGraph, lane: CudaLane) -> int:
    with translating("replaying a graph", lane.device_name), torch.cuda.stream(lane.torch_stream):
        graph.replay()
    return 0


def _refuse() -> int:
    raise DeviceError("a closed graph cannot be replayed")
