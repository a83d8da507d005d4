"""The one way kernels of this backend are launched.

Everything that differs between a GPU and Triton's interpreter is decided here or in
:mod:`ninfer_ops_triton.kernels.lib`, so that kernels read the same in both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from threading import get_ident
from typing import Any

import torch
import triton
from torch import Tensor

from ninfer_core.device.driver import driver

INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether kernels run in Triton's interpreter on CPU tensors; read once, like Triton does."""

Observer = Callable[[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]
observers: list[Observer] = []
"""Called with (kernel, grid, args, options) at each launch of any thread."""


_dry: list[int] = []
"""Threads inside :func:`dry_run`, once for each time: other threads launch as ever."""


_named: list[tuple[int, int]] = [(9, 0)]
"""The compute capability in use where there is no GPU is the last."""


@contextmanager
def dry_run(named: tuple[int, int] = (9, 0)) -> Iterator[None]:
    """Inside, a launch of this thread ends after its observers. Without a GPU the device is an H200
    in name, or of the capability ``named``: what would run there can be recorded on any machine,
    with operands that have no storage (torch's ``meta``)."""
    _dry.append(get_ident())
    _named.append(named)
    try:
        yield
    finally:
        _named.pop()
        _dry.remove(get_ident())


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *args: Any,
    warps: int = 4,
    stages: int = 2,
    dependent: bool = False,
    releasing: bool = False,
    **constants: Any,
) -> None:
    """Enqueue ``kernel`` on torch's current stream.

    ``dependent`` asks for programmatic dependent launch: the kernel may start while its
    predecessor runs, and waits for it by ``lib.await_inputs(PDL)`` before it touches what
    that one wrote. ``releasing`` lets a kernel that starts late release its own dependents early.
    The kernel takes ``INTERPRET`` and ``PDL`` as its last constants.
    """
    if observers or _dry:
        _observe(kernel, grid, args, _options(warps, stages, dependent, releasing), constants)
        if get_ident() in _dry:
            return
    if not on_gpu():
        options = _options(warps, stages, dependent, releasing)
        kernel[grid](*args, **constants, **options)
        return
    device = torch.cuda.current_device()
    words, form = _described(args)
    key = (device, kernel.fn, warps, stages, dependent, releasing, *form, *constants.values())
    ready = _ready.get(key)
    if ready is None:
        options = _options(warps, stages, dependent, releasing)
        compiled = kernel[grid](*args, **constants, **options)
        _ready[key] = _prepare(kernel, args, {**constants, **options}, compiled)
        return
    width, height, depth = (*grid, 1, 1)[:3]
    ready.run(
        width, height, depth, _streams()(device), ready.function, ready.metadata,
        None, None, None, *(words if ready.by_address else args), *ready.constants,
    )  # fmt: skip


def _options(warps: int, stages: int, dependent: bool, releasing: bool) -> dict[str, Any]:
    """What Triton compiles for, and the constants that every kernel takes."""
    pdl = (dependent or releasing) and supports_dependent_launch()
    options: dict[str, Any] = {"num_warps": warps, "num_stages": stages}
    if pdl and dependent:
        options["launch_pdl"] = True
    return {**options, "INTERPRET": INTERPRET, "PDL": pdl}


def _observe(
    kernel: Any,
    grid: tuple[int, ...],
    args: tuple[Any, ...],
    options: dict[str, Any],
    constants: dict[str, Any],
) -> None:
    for observe in observers:
        observe(kernel, grid, args, {**constants, **options})


def _described(args: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """Arguments with tensors as their addresses, and what is compiled apart of them, as
    :func:`specialisation` has it, with which tensors are the device's own."""
    words: list[Any] = []
    form: list[Any] = []
    for argument in args:
        if isinstance(argument, Tensor):
            word = argument.data_ptr()
            words.append(word)
            form += argument.dtype, argument.is_cuda, not word & 15
            continue
        words.append(argument)
        if type(argument) is not int:
            form.append(type(argument))
        elif -_WIDE <= argument < _WIDE:
            form.append(2 if argument == 1 else not argument & 15)
        else:
            form.append(4 if argument & 15 else 3)
    return words, form


_WIDE = 1 << 31
"""Integers from here on take 64 bits."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """A compiled kernel and how it is called: ``constants`` follow the arguments. ``by_address``:
    tensors are given as addresses, which spares the driver's look-up of each. It tells where those
    of host memory lie, and refuses what a kernel cannot reach, so that these are given as such."""

    run: Callable[..., None]
    function: Any
    metadata: Any
    constants: tuple[Any, ...]
    by_address: bool


_ready: dict[tuple[Any, ...], _Ready] = {}
"""Compiled kernels by what Triton specialises on. Its own look-up costs several times a launch."""


SHARED_MEMORY = 100
"""Percent of an SM's memory for all kernels alike: an SM that divides it in another way for the
next kernel first runs empty, so that kernels launched ahead could not begin on it."""


def _prepare(
    kernel: Any, args: tuple[Any, ...], constants: dict[str, Any], compiled: Any
) -> _Ready:
    driver().prefer_shared_memory(compiled.function, SHARED_MEMORY)
    return _Ready(
        compiled.run,
        compiled.function,
        compiled.packed_metadata,
        tuple(constants[name] for name in kernel.arg_names[len(args) :]),
        all(argument.is_cuda for argument in args if isinstance(argument, Tensor)),
    )


def specialisation(argument: Any) -> Any:
    """What Triton compiles apart: element types, alignment of addresses, and of integers whether
    they are 1, multiples of 16, or wide."""
    if isinstance(argument, int):
        return argument == 1, not argument & 15, -(1 << 31) <= argument < 1 << 31
    if isinstance(argument, torch.Tensor):
        return argument.dtype, not argument.data_ptr() & 15
    return type(argument)


@lru_cache
def _streams() -> Callable[[int], int]:
    """Torch's current stream by device, the way Triton asks for it."""
    found: Callable[[int], int] = triton.runtime.driver.active.get_current_stream
    return found


def supports_dependent_launch() -> bool:
    """Programmatic dependent launch exists from compute capability 9.0 on."""
    return not INTERPRET and capability() >= (9, 0)


def capability() -> tuple[int, int]:
    """Compute capability of the current device; 9.0 where there is none and none is named."""
    return _capability(torch.cuda.current_device()) if on_gpu() else _named[-1]


def multiprocessors() -> int:
    """Of the current device; the interpreter plays one with 4."""
    if on_gpu():
        return _multiprocessors(torch.cuda.current_device())
    return 132 if get_ident() in _dry else 4


@lru_cache
def on_gpu() -> bool:
    """Whether kernels are compiled for a GPU and run there."""
    return not INTERPRET and torch.cuda.is_available()


@lru_cache
def _capability(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@lru_cache
def _multiprocessors(device: int) -> int:
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def cdiv(amount: int, size: int) -> int:
    """The least number of pieces of ``size`` that hold ``amount``; Triton's own is slow to call."""
    return -(-amount // size)


next_power_of_2 = triton.next_power_of_2
