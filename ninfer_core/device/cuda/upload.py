"""Copies of host memory into device memory at the speed of pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

import torch
from torch import Tensor

from ninfer_core.device.arena import Block
from ninfer_core.device.cuda.errors import translating
from ninfer_core.device.cuda.lanes import CudaEvent, CudaLane

PIECE = 64 << 20
"""Bytes of one staging buffer."""

BUFFERS = 2


class Uploader:
    """Sends pageable memory through pinned buffers, filling one while the other is copied."""

    def __init__(self, allocate: Callable[[str, int], Block]) -> None:
        self._allocate = allocate
        self._lock = Lock()
        self._blocks: list[Block] = []
        self._busy: list[CudaEvent | None] = [None] * BUFFERS
        self._next = 0

    def send(self, source: Tensor, target: Tensor, lane: CudaLane) -> None:
        """Enqueue the copy of one contiguous tensor; the pair has been checked."""
        if not source.numel():
            return
        with (
            translating("uploading", lane.device_name),
            torch.cuda.stream(lane.torch_stream),
        ):
            if source.is_pinned():
                target.copy_(source, non_blocking=True)
                return
            with self._lock:
                self._in_pieces(_bytes(source), _bytes(target), lane)

    def close(self) -> None:
        """Give the buffers back; no copy from them is in flight."""
        with self._lock:
            for block in self._blocks:
                block.release()
            self._blocks.clear()
            self._busy = [None] * BUFFERS

    def _in_pieces(self, source: Tensor, target: Tensor, lane: CudaLane) -> None:
        for start in range(0, source.numel(), PIECE):
            piece = source[start : start + PIECE]
            slot = self._next
            self._next = (slot + 1) % BUFFERS
            staged = self._buffer(slot)[: piece.numel()]
            staged.copy_(piece)
            target[start : start + PIECE].copy_(staged, non_blocking=True)
            self._busy[slot] = lane.record()

    def _buffer(self, slot: int) -> Tensor:
        """Staging buffer ``slot``, once the copy from it has passed."""
        while len(self._blocks) <= slot:
            self._blocks.append(self._allocate("upload", PIECE))
        event = self._busy[slot]
        if event is not None:
            event.wait()
        return self._blocks[slot].data


def _bytes(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor, uint8 [size]."""
    return tensor.reshape(-1).view(torch.uint8)
