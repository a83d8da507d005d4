"""Compile in parallel what would otherwise be compiled one by one at first launches.

Triton releases the interpreter lock while it optimises, translates and assembles, which is most of
its time, so that threads do; what they compile is in Triton's caches, in memory and on disk, under
the keys of the launches to come.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch

from ninfer_ops_triton import launch
from ninfer_ops_triton.integers import zeros

WORKERS = 8
_log = logging.getLogger("ninfer.ops_triton")


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as the compiler sees it; keeps no memory."""

    dtype: torch.dtype
    address: int

    def data_ptr(self) -> int:
        return self.address


@dataclass(frozen=True, slots=True)
class Foreseen:
    """A launch to come; ``options`` are the kernel's constants and the compiler's options."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]


def prepare(rehearsal: Callable[[], None]) -> None:
    """Call ``rehearsal`` without running its kernels, and compile those for the current device.

    (``ninfer_core.ops.backend.Prepare``.) What fails is logged, and is the first launch's to tell.
    """
    if not launch.on_gpu():
        return
    begun = time.perf_counter()
    try:
        launches = foresee(rehearsal)
    except Exception:
        _log.warning("kernels are compiled one by one: a rehearsal failed", exc_info=True)
        return
    for said in compile_all(launches):
        _log.warning("not compiled ahead: %s", said)
    taken = time.perf_counter() - begun
    _log.info("%d kernels were made ready in %.1f s", len(launches), taken)


def foresee(rehearsal: Callable[[], None]) -> list[Foreseen]:
    """The launches of ``rehearsal`` on this thread, one of each that Triton compiles apart."""
    found: dict[tuple[Any, ...], Foreseen] = {}
    thread = get_ident()

    def observe(
        kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        if get_ident() != thread:
            return
        key = (kernel, *options.items(), *map(launch.specialisation, args))
        if key not in found:
            found[key] = Foreseen(kernel, grid, tuple(map(_without_memory, args)), options)

    launch.observers.append(observe)
    try:
        with launch.dry_run(), zeros():
            rehearsal()
    finally:
        launch.observers.remove(observe)
    return list(found.values())


def compile_all(launches: list[Foreseen]) -> list[str]:
    """Compile and load for the current device; gives what failed."""
    device = torch.cuda.current_device()
    for kernel in {entry.kernel for entry in launches}:
        # Both are made at a first use, without a lock: once here rather than in several threads.
        _ = kernel.device_caches[device], kernel.cache_key
    workers = max(1, min(WORKERS, os.cpu_count() or 1))
    with ThreadPoolExecutor(
        workers, "compile", initializer=torch.cuda.set_device, initargs=(device,)
    ) as pool:
        return [said for said in pool.map(_compile, launches) if said is not None]


def _compile(entry: Foreseen) -> str | None:
    """What went wrong, or None."""
    try:
        compiled = entry.kernel.warmup(*entry.args, grid=entry.grid, **entry.options)
        # Makes the launcher, which Triton before 3.7 compiles as well, and loads the kernel.
        _ = compiled.run
    except Exception as error:
        return f"{entry.kernel.__name__}: {type(error).__name__}: {str(error)[-300:]}"
    return None


def _without_memory(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return Operand(argument.dtype, argument.data_ptr() & 15)
    return argument
