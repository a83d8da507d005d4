"""What this device reads per second: a kernel that does nothing else, timed by its own clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ninfer_ops_triton.kernels.stream import add_words
from ninfer_ops_triton.launch import launch, multiprocessors

BYTES: Final = 4 << 30
REPEATS: Final = 7


@dataclass(frozen=True, slots=True)
class Shape:
    """How the kernel is launched: programs for each multiprocessor, words a step, warps, stages."""

    programs: int
    block: int
    warps: int
    stages: int


SHAPES: Final = (
    Shape(2, 4096, 8, 4),
    Shape(2, 8192, 8, 4),
    Shape(4, 4096, 8, 3),
    Shape(4, 8192, 8, 2),
    Shape(8, 4096, 4, 2),
    Shape(8, 2048, 4, 4),
    Shape(16, 2048, 4, 2),
)


def read_bandwidth(device: int, size: int = BYTES) -> dict[str, Any]:
    """Bytes per second read on CUDA device ``device``: the best of ``REPEATS`` passes over ``size``
    bytes in each shape, with the shape that reached it. Frees what it allocated.

    Raises RuntimeError when the memory is not there.
    """
    with torch.cuda.device(device):
        words = torch.empty(size // 4, dtype=torch.int32, device="cuda").random_()
        best = max(_passes(words), key=lambda found: found[0])
        del words
        torch.cuda.empty_cache()
    return {"bytes_per_second": best[0], "bytes": size, "shape": asdict(best[1])}


def _passes(words: Tensor) -> Iterator[tuple[float, Shape]]:
    for shape in SHAPES:
        add_up(words, shape)
        for _ in range(REPEATS):
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            add_up(words, shape)  # so that the queue is not empty when the clock starts
            start.record()
            read = add_up(words, shape)[1]
            end.record()
            end.synchronize()
            yield 4 * read / (1e-3 * start.elapsed_time(end)), shape


def add_up(words: Tensor, shape: Shape) -> tuple[Tensor, int]:
    """One pass over i32 ``words``, at least a block of them.

    Gives the sum of each program, right modulo 2^32, and how many words from the first on they
    read; those that do not fill a step of all programs are left out.
    """
    blocks = words.numel() // shape.block
    programs = min(blocks, shape.programs * multiprocessors())
    steps = blocks // programs
    sums = torch.empty(programs, dtype=torch.int64, device=words.device)
    launch(
        add_words, (programs,), words, sums, steps,
        warps=shape.warps, stages=shape.stages, BLOCK=shape.block, STAGES=shape.stages,
    )  # fmt: skip
    return sums, programs * steps * shape.block
