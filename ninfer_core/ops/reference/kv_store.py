"""Rotary positions, what goes into the paged key/value store, and how its formats encode it."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import PAGE_TOKENS, KvCache, PagedRows
from ninfer_core.ops.errors import OpError
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


def place_rows(
    rows: PagedRows, positions: Tensor, inverse_frequencies: Tensor, axes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return kv_slots(rows), *rope_angles(positions, inverse_frequencies, axes)


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
    _write(cache.format, cache.keys, cache.key_scales, keys, slots)
    _write(cache.format, cache.values, cache.value_scales, values, slots)


def _write(kind: str, pool: Tensor, scales: Tensor | None, rows: Tensor, slots: Tensor) -> None:
    if kind not in _LARGEST:
        pool.flatten(0, 1).index_copy_(0, slots, rows.to(pool.dtype))
        return
    scales = _scales_of(kind, scales)
    codes, made = encode(kind, rows)
    _as_bytes(pool).flatten(0, 1).index_copy_(0, slots, _as_bytes(codes))
    scales.flatten(0, 1).index_copy_(0, slots, made)


_LARGEST = {"int8": 127.0, "fp8": 448.0}
"""Formats with scales, and the largest code of each."""


def encode(kind: str, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [..., D] as codes [..., D] and scales f32[..., G] of ``int8`` or ``fp8``.

    A group whose scale would be 0 has codes 0. One that holds NaN or an infinity has scale NaN and
    codes 0, so that whatever reads it sees NaN.
    """
    top = _LARGEST[kind]
    size = 64 if kind == "int8" else rows.shape[-1]
    groups = widen(rows).reshape(*rows.shape[:-1], rows.shape[-1] // size, size)
    scales = (groups.abs().amax(-1) / top).float()
    scales = scales.where(groups.isfinite().all(-1), torch.nan)
    usable = (scales > 0).unsqueeze(-1)
    codes = groups / scales.to(groups.dtype).unsqueeze(-1).where(usable, 1.0)
    codes = codes.clamp(-top, top).where(usable, 0.0).flatten(-2)
    if kind == "int8":
        return codes.round().to(torch.int8), scales
    return codes.float().to(torch.float8_e4m3fn), scales


def decode(kind: str, codes: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Elements of codes [..., D]; plain formats are returned as they are."""
    if kind not in _LARGEST:
        return codes
    scales = _scales_of(kind, scales)
    groups = codes.to(dtype).view(*scales.shape, codes.shape[-1] // scales.shape[-1])
    return (groups * scales.unsqueeze(-1)).flatten(-2)


def _scales_of(kind: str, scales: Tensor | None) -> Tensor:
    if scales is None:
        raise OpError(f"kv format {kind} needs key_scales and value_scales; the cache has none")
    return scales


def _as_bytes(codes: Tensor) -> Tensor:
    """ATen does not move E4M3 elements by index; bytes it does."""
    return codes.view(torch.uint8)
