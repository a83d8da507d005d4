"""Moving pages and state slots to pinned host memory and back, one kernel for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.contracts.transfers import GRAIN, PIECE_BYTES, UnitPlanes
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.kernels.transfers import move_units
from ninfer_ops_triton.launch import launch

PROGRAMS = 32
"""Enough bytes on their way to fill the bus, and few enough to leave the rest of the device to the
rounds that run meanwhile."""
WARPS = 8


def gather_units(units: UnitPlanes, moves: Tensor, host: Tensor) -> None:
    _move(units, moves, host, gather=True)


def scatter_units(units: UnitPlanes, moves: Tensor, host: Tensor) -> None:
    _move(units, moves, host, gather=False)


def _move(units: UnitPlanes, moves: Tensor, host: Tensor, *, gather: bool) -> None:
    """Raises OpError for operands that the contract does not allow; moves are not looked at."""
    if moves.ndim != 2 or moves.shape[1] != 2 or moves.dtype != torch.int64:
        raise OpError(f"moves is {moves.dtype}{list(moves.shape)}; it must be i64[N, 2]")
    if host.ndim != 1 or host.dtype != torch.uint8 or host.data_ptr() % GRAIN:
        raise OpError(
            f"host is {host.dtype}{list(host.shape)} at {host.data_ptr():#x}; it must be u8[M] at "
            f"a multiple of {GRAIN}"
        )
    if not (moves.is_contiguous() and host.is_contiguous()):
        raise OpError("moves and host must be contiguous")
    pool = units.planes[0].view(torch.uint8)
    launch(
        move_units, (PROGRAMS,), pool, units.pieces, moves, host,
        moves.shape[0], units.pieces.shape[0],
        warps=WARPS, BLOCK=PIECE_BYTES // 4, GATHER=gather,
    )  # fmt: skip


OPS: Mapping[str, Callable[..., Any]] = {
    "gather_units": gather_units,
    "scatter_units": scatter_units,
}
"""Op name to function."""
