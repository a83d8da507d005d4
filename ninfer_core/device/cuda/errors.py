"""What the CUDA libraries throw, as errors of the device floor.

torch, cupy and the driver number errors alike (CUresult and cudaError_t agree on those below).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ninfer_core.device.base import MemoryFacts
from ninfer_core.device.cuda.keep import keep_tensors
from ninfer_core.device.driver import DriverError, driver
from ninfer_core.device.errors import LESS, DeviceError, DeviceLost

OUT_OF_MEMORY = 2

LOST = frozenset({
    4,  # the driver is shutting down
    214,  # uncorrectable memory error
    220,  # uncorrectable NVLink error
    226, 227,  # contained and uncontained errors
    700,  # illegal address
    702,  # launch timeout
    709,  # the context is destroyed
    710,  # device-side assert
    714, 715, 716, 717, 718,  # stack, instruction, alignment, address space, program counter
    719,  # launch failure
    721, 722,  # tensor memory leak, use of it after free
    999,  # unknown
})  # fmt: skip
"""Codes after which every further call of the process fails alike."""


def translated(error: BaseException, doing: str, device: str) -> DeviceError:
    """``error``, thrown while ``doing`` something ("replaying a graph"), as a DeviceError."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    code = _code(error)
    if code in LOST or (code is None and _context_is_dead()):
        return lost(device, doing, lines[0])
    return DeviceError(f"{device} failed while {doing}: {lines[0]}")


def failed_call(code: int, doing: str, device: str) -> DeviceError:
    """The error of a driver call that returned ``code``."""
    return translated(DriverError("driver", code, driver().error_name(code)), doing, device)


def lost(device: str, doing: str, detail: str) -> DeviceLost:
    """The error of a device whose context is gone. The process can still end well after it."""
    keep_tensors()
    return DeviceLost(
        f"{device} was lost while {doing}: {detail}", hint="no more work can run in this process"
    )


def out_of_memory(what: str, asked: int, memory: MemoryFacts, device: str) -> DeviceError:
    """The error of memory that is not there, with the numbers."""
    return DeviceError(
        f"{what} needs {asked:,} bytes; {memory.free:,} of {memory.total:,} are free on {device}",
        hint=LESS,
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that memory ran out."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or _code(error) == OUT_OF_MEMORY


def is_from_cuda(error: BaseException) -> bool:
    """Whether ``error`` comes from a CUDA call rather than from the code around it."""
    return isinstance(error, torch.AcceleratorError | torch.OutOfMemoryError | DriverError) or (
        _code(error) is not None
    )


@contextmanager
def translating(doing: str, device: str) -> Iterator[None]:
    """Turn what CUDA throws in the block into a DeviceError."""
    try:
        yield
    except (RuntimeError, DriverError) as error:
        raise translated(error, doing, device) from error


def _code(error: BaseException) -> int | None:
    """The CUDA error number that torch, cupy or the driver wrapper put on an exception."""
    for field in ("error_code", "status", "code"):
        value = getattr(error, field, None)
        if isinstance(value, int):
            return value
    return None


def _context_is_dead() -> bool:
    """Ask the legacy stream: in a context that failed for good every call repeats the failure."""
    return driver().stream_state(0) in LOST
