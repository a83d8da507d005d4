"""Elementwise functions whose bits do not depend on where an element lies.

ATen computes transcendental functions with vector code on whole groups of lanes and with scalar
code on what is left over, and the two round differently. What is left over depends on the number of
elements and on how threads split them, so on the batch. Here every element takes the vector path.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

_LANES = 64
"""A multiple of every vector step of ATen (two registers of fp32 on AVX-512: 32)."""

_GRAIN = 32768
"""ATen gives fewer elements than this to one thread."""


def compute_dtype(x: Tensor) -> torch.dtype:
    """fp32, or fp64 where the caller wants an oracle."""
    return torch.promote_types(x.dtype, torch.float32)


def whole_lanes(fn: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """``fn(*operands)`` for an elementwise ``fn`` of operands [T, ..., N] or [N] that broadcast.

    The first operand has the full shape; the others share its last dimension.
    """
    x = operands[0]
    width = x.shape[-1]
    if width % _LANES:
        missing = _LANES - width % _LANES
        padded = [pad(operand, (0, missing)) for operand in operands]
        return whole_lanes(fn, *padded)[..., :width]
    if _splits_whole(x.numel()):
        return fn(*operands)
    rows = max(1, (_GRAIN - 1) // (x.numel() // x.shape[0]))
    full = [torch.split(operand.expand(x.shape), rows) for operand in operands]
    return torch.cat([fn(*slab) for slab in zip(*full, strict=True)])


def _splits_whole(elements: int) -> bool:
    """Whether ATen's split over threads cuts between groups of lanes."""
    parts = min(torch.get_num_threads(), -(-elements // _GRAIN))
    return parts <= 1 or elements % (parts * _LANES) == 0
