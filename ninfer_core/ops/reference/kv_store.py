"""Rotary positions and what goes into the paged key/value store."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import PAGE_TOKENS, KvCache, PagedRows
from ninfer_core.ops.reference.lanes import widen
from ninfer_core.ops.reference.norm import inverse_rms


def rope_angles(
    positions: Tensor, inverse_frequencies: Tensor, axes: Tensor
) -> tuple[Tensor, Tensor]:
    angles = positions.index_select(0, axes).t() * inverse_frequencies
    return angles.cos(), angles.sin()


def kv_slots(rows: PagedRows) -> Tensor:
    offsets = torch.arange(rows.width, dtype=torch.int32)
    tokens = rows.starts.unsqueeze(1) + offsets
    live = offsets < rows.live.unsqueeze(1)
    pages = torch.where(live, tokens // PAGE_TOKENS, 0)
    tables = rows.block_tables.index_select(0, rows.table_rows)
    places = tables.gather(1, pages.long()).long() * PAGE_TOKENS + tokens % PAGE_TOKENS
    return torch.where(live, places, -1).flatten()


def qk_norm_rope_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    cache: KvCache,
    slots: Tensor,
) -> Tensor:
    heads = q.shape[1]
    both = widen(torch.cat([q, k], dim=1))
    both = both * inverse_rms(both, eps)
    both[:, :heads].mul_(q_scale)
    both[:, heads:].mul_(k_scale)
    _rotate(both, cos, sin)
    _store(cache, both[:, heads:], v, slots)
    return both[:, :heads].to(q.dtype).contiguous()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn pairs (j, j + R/2) of x [T, heads, D] in place by angles [T, R/2]."""
    half = cos.shape[1]
    pairs = x[..., : 2 * half].view(*x.shape[:2], 2, half)
    crossed = pairs.flip(2).mul_(torch.stack([-sin, sin], dim=1).unsqueeze(1))
    pairs.mul_(cos[:, None, None]).add_(crossed)


def _store(cache: KvCache, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Write keys and values [T, kv, D] at ``slots`` i64[T]; rows with slot -1 are left out."""
    if min(slots.tolist()) < 0:
        live = slots >= 0
        keys, values, slots = keys[live], values[live], slots[live]
    for pool, rows in ((cache.keys, keys), (cache.values, values)):
        pool.flatten(0, 1).index_copy_(0, slots, rows.to(pool.dtype))
