"""Blocks of memory: on the device from a cupy pool, on the host mapped and registered."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import cupy
import torch
from cuda.core import Device as CoreDevice
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from ninfer_core.device.arena import Block
from ninfer_core.device.base import ALIGNMENT, MemoryFacts
from ninfer_core.device.cuda.errors import out_of_memory, translated, translating
from ninfer_core.device.driver import DriverError, driver
from ninfer_core.device.errors import LESS, DeviceError
from ninfer_core.device.host import available_memory, total_memory

_REGISTERED: dict[int, Tensor] = {}
"""Host memory by address, kept until it is unregistered: its address must not be mapped anew."""


def device_memory(index: int) -> MemoryFacts:
    """Bytes of GPU ``index``: in all, and free for every process on it."""
    try:
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        raise translated(error, "asking for its memory", f"cuda:{index}") from error
    return MemoryFacts(total, free)


def device_block(index: int) -> Callable[[str, int], Block]:
    """What allocates arenas on GPU ``index``: a pool of its own for each."""

    def allocate(purpose: str, capacity: int) -> Block:
        pool = cupy.cuda.MemoryPool()
        size = max(capacity, ALIGNMENT)
        try:
            with cupy.cuda.Device(index):
                array = cupy.ndarray((size,), dtype=cupy.uint8, memptr=pool.malloc(size))
                view = from_dlpack(array)
        except cupy.cuda.memory.OutOfMemoryError as error:
            memory = device_memory(index)
            raise out_of_memory(f"arena {purpose!r}", capacity, memory, f"cuda:{index}") from error
        except RuntimeError as error:
            raise translated(error, f"allocating arena {purpose!r}", f"cuda:{index}") from error
        return Block(view, partial(_empty, pool, f"cuda:{index}"))

    return allocate


def _empty(pool: cupy.cuda.MemoryPool, device: str) -> None:
    """Give the device what nobody views any more; the rest follows its last view."""
    with translating("freeing an arena", device):
        pool.free_all_blocks()


def pinned_block(index: int) -> Callable[[str, int], Block]:
    """What allocates host memory that GPU ``index`` reaches at the host's own addresses.

    It is mapped and registered rather than taken from torch's pinned allocator, which rounds up to
    a power of two and records events on streams when a tensor dies.
    """

    def allocate(purpose: str, capacity: int) -> Block:
        available = available_memory()
        try:
            # Registering touches every page: what does not fit would end in the kernel's killer.
            if capacity > available:
                raise MemoryError("too little memory")
            data = _mapped(capacity)
            _register(index, data)
        except (OSError, MemoryError, DriverError) as error:
            raise DeviceError(
                f"pinned arena {purpose!r} needs {capacity:,} bytes of host memory; "
                f"{available:,} of {total_memory():,} are available ({error})",
                hint=LESS,
            ) from error
        return Block(data, partial(_unregister, index, data.data_ptr()))

    return allocate


def _mapped(capacity: int) -> Tensor:
    """Whole pages of fresh host memory, uint8; they live as long as a view of them does."""
    size = -(-max(capacity, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages says EINVAL
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _register(index: int, data: Tensor) -> None:
    address = data.data_ptr()
    CoreDevice(index).set_current()
    driver().register(address, data.numel())
    _REGISTERED[address] = data
    if driver().device_address(address) != address:
        _unregister(index, address)
        raise DeviceError(f"cuda:{index} sees host memory at other addresses than the host does")


def _unregister(index: int, address: int) -> None:
    with suppress(DriverError):  # after a lost device the memory is not registered any more
        CoreDevice(index).set_current()
        driver().unregister(address)
        _REGISTERED.pop(address, None)
