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
    pdl = (dependent or releasing) and supports_dependent_launch()
    options: dict[str, Any] = {"num_warps": warps, "num_stages": stages}
    if pdl and dependent:
        options["launch_pdl"] = True
    for observe in observers:
        observe(kernel, grid, args, {**constants, **options, "INTERPRET": INTERPRET, "PDL": pdl})
    if _dry and get_ident() in _dry:
        return
    constants |= {"INTERPRET": INTERPRET, "PDL": pdl}
    if not on_gpu():
        kernel[grid](*args, **constants, **options)
        return
    device = torch.cuda.current_device()
    key = (
        device, kernel.fn, warps, stages, pdl and dependent, *constants.values(),
        *map(specialisation, args),
    )  # fmt: skip
    ready = _ready.get(key)
    if ready is None:
        _ready[key] = _prepare(kernel, len(args), kernel[grid](*args, **constants, **options))
        return
    width, height, depth = (*grid, 1, 1)[:3]
    ready.run(
        width, height, depth, _current_stream(device), ready.function, ready.metadata,
        None, None, None, *args, *[constants[name] for name in ready.constants],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Ready:
    """A compiled kernel and how it is called; ``constants`` follow the arguments in this order."""

    run: Callable[..., None]
    function: Any
    metadata: Any
    constants: tuple[str, ...]


_ready: dict[tuple[Any, ...], _Ready] = {}
"""Compiled kernels by what Triton specialises on. Its own look-up costs several times a launch."""


SHARED_MEMORY = 100
"""Percent of an SM's memory for all kernels alike: an SM that divides it in another way for the
next kernel first runs empty, so that kernels launched ahead could not begin on it."""


def _prepare(kernel: Any, given: int, compiled: Any) -> _Ready:
    driver().prefer_shared_memory(compiled.function, SHARED_MEMORY)
    return _Ready(
        compiled.run,
        compiled.function,
        compiled.packed_metadata,
        tuple(kernel.arg_names[given:]),
    )


def specialisation(argument: Any) -> Any:
    """What Triton compiles apart: element types, alignment of addresses, and of integers whether
    they are 1, multiples of 16, or wide."""
    if isinstance(argument, int):
        return argument == 1, not argument & 15, -(1 << 31) <= argument < 1 << 31
    if isinstance(argument, torch.Tensor):
        return argument.dtype, not argument.data_ptr() & 15
    return type(argument)


def _current_stream(device: int) -> int:
    stream: int = triton.runtime.driver.active.get_current_stream(device)
    return stream


def supports_dependent_launch() -> bool:
    """Programmatic dependent launch exists from compute capability 9.0 on."""
    return not INTERPRET and capability() >= (9, 0)


def capability() -> tuple[int, int]:
    """Compute capability of the current device; 9.0 where there is none and none is named."""
    return torch.cuda.get_device_capability() if on_gpu() else _named[-1]


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
def _multiprocessors(device: int) -> int:
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


cdiv = triton.cdiv
next_power_of_2 = triton.next_power_of_2
