"""The one way kernels of this backend are launched.

Everything that differs between a GPU and Triton's interpreter is decided here or in
:mod:`ninfer_ops_triton.kernels.lib`, so that kernels read the same in both.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import triton

INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether kernels run in Triton's interpreter on CPU tensors; read once, like Triton does."""

Observer = Callable[[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]
observers: list[Observer] = []
"""Called with (kernel, grid, args, options) at each launch; tests record launches to compile."""


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *args: Any,
    warps: int = 4,
    stages: int = 2,
    dependent: bool = False,
    **constants: Any,
) -> None:
    """Enqueue ``kernel`` on torch's current stream.

    ``dependent`` asks for programmatic dependent launch: the kernel may start while its
    predecessor runs, and waits for it by ``lib.await_inputs(PDL)`` before it touches what
    that one wrote. The kernel takes ``INTERPRET`` and ``PDL`` as its last constants.
    """
    pdl = dependent and supports_dependent_launch()
    options: dict[str, Any] = {"num_warps": warps, "num_stages": stages}
    if pdl:
        options["launch_pdl"] = True
    for observe in observers:
        observe(kernel, grid, args, {**constants, **options, "INTERPRET": INTERPRET, "PDL": pdl})
    kernel[grid](*args, **constants, INTERPRET=INTERPRET, PDL=pdl, **options)


@lru_cache
def supports_dependent_launch() -> bool:
    """Programmatic dependent launch exists from compute capability 9.0 on."""
    return (
        not INTERPRET and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9,)
    )


@lru_cache
def multiprocessors() -> int:
    """Of the current device; the interpreter plays one with 4."""
    if INTERPRET or not torch.cuda.is_available():
        return 4
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


cdiv = triton.cdiv
