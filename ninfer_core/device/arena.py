"""How every device cuts its blocks of memory into named tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import torch
from torch import Tensor

from ninfer_core.device.base import ALIGNMENT, Extent
from ninfer_core.device.errors import ArenaExhausted, DeviceError


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Block:
    """Memory as a device gave it: uint8 [size], and what gives it back once nobody views it."""

    data: Tensor
    release: Callable[[], None] = _nothing


class BlockArena:
    """One block, cut up in order. See :class:`ninfer_core.device.base.Arena`."""

    __slots__ = ("_base", "_data", "_layout", "_release", "_used", "capacity", "purpose")

    def __init__(self, purpose: str, capacity: int, block: Block) -> None:
        self.purpose = purpose
        self.capacity = capacity
        self._data: Tensor | None = block.data
        self._release = block.release
        self._base = -block.data.data_ptr() % ALIGNMENT
        self._used = 0
        self._layout: dict[str, Extent] = {}
        if self._base + capacity > block.data.numel():
            raise DeviceError(f"the block of arena {purpose!r} is too short for its alignment")

    @property
    def free(self) -> int:
        return self.capacity - self._used

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if self._data is None:
            raise DeviceError(f"arena {self.purpose!r} is closed; {name!r} cannot be taken")
        if name in self._layout:
            raise DeviceError(f"arena {self.purpose!r} already has a tensor {name!r}")
        if any(size < 0 for size in shape):
            raise DeviceError(f"{name!r} has a negative size: {list(shape)}")
        extent = self._place(name, prod(shape) * dtype.itemsize)
        self._layout[name] = extent
        self._used = extent.offset + extent.length
        start = self._base + extent.offset
        return self._data[start : start + extent.length].view(dtype).view(tuple(shape))

    def layout(self) -> Mapping[str, Extent]:
        return MappingProxyType(self._layout)

    def close(self) -> None:
        if self._data is None:
            return
        self._data = None
        release, self._release = self._release, _nothing
        release()

    def _place(self, name: str, length: int) -> Extent:
        offset = -(-self._used // ALIGNMENT) * ALIGNMENT
        if offset + length > self.capacity:
            raise ArenaExhausted(
                f"arena {self.purpose!r} of {self.capacity:,} bytes has "
                f"{max(0, self.capacity - offset):,} left; {name!r} needs {length:,}"
            )
        return Extent(offset, length)


class Arenas:
    """The arenas of one device, each purpose once."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._arenas: dict[str, BlockArena] = {}

    def add(self, purpose: str, capacity: int, allocate: Callable[[str, int], Block]) -> BlockArena:
        """Allocate ``capacity`` bytes for ``purpose``. Raises DeviceError."""
        if purpose in self._arenas:
            raise DeviceError(f"{self._device} already has an arena {purpose!r}")
        if capacity < 0:
            raise DeviceError(f"arena {purpose!r} cannot have {capacity:,} bytes")
        self._arenas[purpose] = BlockArena(purpose, capacity, allocate(purpose, capacity))
        return self._arenas[purpose]

    def __len__(self) -> int:
        return len(self._arenas)

    def takes(self) -> int:
        """Tensors taken from all of them."""
        return sum(len(arena.layout()) for arena in self._arenas.values())

    def close(self) -> None:
        for arena in self._arenas.values():
            arena.close()
