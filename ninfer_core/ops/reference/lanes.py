"""Elementwise functions whose bits do not depend on where an element lies.

ATen computes silu, sigmoid and softplus with vector code on whole groups of lanes and with scalar
code on what is left over, and the two round differently. What is left over depends on the number of
elements and on how threads split them, so on the batch. Here every element takes the vector path.
(exp, log, sin and cos need no such care: their kernels have no scalar path.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_LANES = 64
"""A multiple of every vector step of ATen (two registers of fp32 on AVX-512: 32)."""

_GRAIN = 32768
"""ATen gives fewer elements than this to one thread."""

_WIDE = (torch.float32, torch.float64)


def widen(x: Tensor) -> Tensor:
    """x in fp32, or in fp64 where the caller wants an oracle."""
    return x if x.dtype in _WIDE else x.float()


def whole_lanes(fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``fn(x)`` for an elementwise ``fn`` and x [T, ..., N]; the result's rows may be strided."""
    width = x.shape[-1]
    if width % _LANES:
        padded = torch.constant_pad_nd(x, (0, _LANES - width % _LANES))
        return whole_lanes(fn, padded)[..., :width]
    if _splits_whole(x.numel()):
        return fn(x)
    rows = max(1, (_GRAIN - 1) // (x.numel() // x.shape[0]))
    return torch.cat([fn(slab) for slab in torch.split(x, rows)])


def _splits_whole(elements: int) -> bool:
    """Whether ATen's split over threads cuts between groups of lanes."""
    parts = min(torch.get_num_threads(), -(-elements // _GRAIN))
    return parts <= 1 or elements % (parts * _LANES) == 0
