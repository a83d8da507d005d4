"""Launches that move pages and state slots, at the geometry of a 9B model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from harness import Operands

from ninfer_core.ops.contracts.transfers import UnitPlanes
from ninfer_ops_triton import transfers

META = Operands(device="meta")
HEADS, HEAD, CHANNELS = 4, 256, 8192


def pages(dtype: torch.dtype) -> torch.Tensor:
    return META.empty(100, 64, HEADS, HEAD, dtype=dtype)


def slots() -> torch.Tensor:
    return META.empty(10, 3, CHANNELS, dtype=torch.bfloat16)


def moved(plane: torch.Tensor, count: int) -> None:
    units = UnitPlanes((plane,), META.empty(128, 4, dtype=torch.int64))
    moves = META.empty(count, 2, dtype=torch.int64)
    host = META.empty(1 << 20, dtype=torch.uint8)
    transfers.gather_units(units, moves, host)
    transfers.scatter_units(units, moves, host)


LAUNCHES: dict[str, Callable[[], None]] = {
    "slot": lambda: moved(slots(), 1),
    "pages": lambda: moved(pages(torch.bfloat16), 33),
}
