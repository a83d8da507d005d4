"""Rotary positions and what goes into the paged key/value store."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import PAGE_TOKENS, KvCache, PagedRows
from ninfer_core.ops.reference.lanes import whole_lanes, widen
from ninfer_core.ops.reference.norm import rms_norm


def rope_angles(
    positions: Tensor, inverse_frequencies: Tensor, axes: Tensor
) -> tuple[Tensor, Tensor]:
    angles = positions.index_select(0, axes).t() * inverse_frequencies
    return whole_lanes(torch.cos, angles), whole_lanes(torch.sin, angles)


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
    queries, keys = rms_norm(q, q_scale, eps), rms_norm(k, k_scale, eps)
    for x in (queries, keys):
        _rotate(x, cos.unsqueeze(1), sin.unsqueeze(1))
    store_kv(cache, keys, v, slots)
    return queries


def store_kv(cache: KvCache, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Write keys and values [T, kv, D] at ``slots`` i64[T]; rows with slot -1 are left out."""
    if min(slots.tolist()) < 0:
        live = slots >= 0
        keys, values, slots = keys[live], values[live], slots[live]
    for pool, rows in ((cache.keys, keys), (cache.values, values)):
        pool.flatten(0, 1).index_copy_(0, slots, rows.to(pool.dtype))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn pairs (j, j + R/2) of x [T, heads, D] in place by angles [T, 1, R/2]."""
    half = cos.shape[-1]
    first, second = widen(x[..., :half]), widen(x[..., half : 2 * half])
    turned = first * cos - second * sin
    x[..., half : 2 * half] = second * cos + first * sin
    x[..., :half] = turned
