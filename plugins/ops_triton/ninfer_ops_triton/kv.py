"""Rotary positions and what goes into the paged key/value store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import PAGE_TOKENS, KvCache, PagedRows
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.integers import integers
from ninfer_ops_triton.kernels import kv_store
from ninfer_ops_triton.launch import cdiv, launch

HEAD_SIZES = (64, 128, 256)
ELEMENTS = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
"""Formats and what a pool holds in each."""

_SCALED = {"int8": 64, "fp8": None}
_ROWS = 16
"""Query rows of one program of the store kernel, about."""
_TOKENS = 8
"""Of one program that makes rotary tables."""


@dataclass(frozen=True, slots=True)
class Pools:
    """A :class:`KvCache` as kernels take it: E4M3 codes as bytes, and some pointer for scales."""

    format: str
    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor
    heads: int
    head_size: int

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.keys, self.values, self.key_scales, self.value_scales


def pools_of(cache: KvCache) -> Pools:
    """The cache's pools; OpError if they have no form that the kernels know."""
    keys, values, kind = cache.keys, cache.values, cache.format
    if kind not in ELEMENTS:
        raise OpError(
            f"kv format {kind!r} has no kernels; choose one of {', '.join(sorted(ELEMENTS))}"
        )
    if keys.dim() != 4 or keys.shape != values.shape:
        raise OpError(
            f"kv pools must both be [pages, {PAGE_TOKENS}, heads, head size]; keys are "
            f"{list(keys.shape)}, values {list(values.shape)}"
        )
    _, page, heads, size = keys.shape
    if page != PAGE_TOKENS:
        raise OpError(
            f"kv pages of {page} tokens have no kernels; build the pools with pages of "
            f"{PAGE_TOKENS} tokens"
        )
    if size not in HEAD_SIZES:
        raise OpError(f"head_size {size} has no attention kernels; they know {HEAD_SIZES}")
    for name, pool in (("keys", keys), ("values", values)):
        if pool.dtype != ELEMENTS[kind]:
            raise OpError(f"kv {name} are {pool.dtype}; format {kind} holds {ELEMENTS[kind]}")
        if not pool.is_contiguous():
            raise OpError(f"kv {name} are strided; a pool is one contiguous block")
    if kind not in _SCALED:
        return Pools(kind, keys, values, keys, values, heads, size)
    key_scales = _scales(cache.key_scales, "key_scales", kind, keys)
    value_scales = _scales(cache.value_scales, "value_scales", kind, keys)
    if kind == "fp8":
        keys, values = keys.view(torch.uint8), values.view(torch.uint8)
    return Pools(kind, keys, values, key_scales, value_scales, heads, size)


def _scales(scales: Tensor | None, name: str, kind: str, keys: Tensor) -> Tensor:
    groups = 1 if kind == "fp8" else keys.shape[-1] // 64
    shape = (*keys.shape[:-1], groups)
    if scales is None:
        raise OpError(f"kv format {kind} needs {name}, fp32 {list(shape)}; there are none")
    if scales.shape != shape or scales.dtype != torch.float32 or not scales.is_contiguous():
        raise OpError(
            f"{name} are {scales.dtype} {list(scales.shape)}; format {kind} needs contiguous "
            f"fp32 {list(shape)}"
        )
    return scales


def group_of(heads: int, pools: Pools) -> int:
    """Query heads that share a key/value head; OpError unless it is a whole number up to 16."""
    group, rest = divmod(heads, pools.heads)
    if rest or not 1 <= group <= 16:
        raise OpError(
            f"{heads} query heads on {pools.heads} key/value heads have no attention kernels; "
            "a key/value head serves 1 to 16 query heads, all alike"
        )
    return group


def rope_angles(
    positions: Tensor, inverse_frequencies: Tensor, axes: Tensor
) -> tuple[Tensor, Tensor]:
    rows, half = positions.shape[1], inverse_frequencies.shape[0]
    cos = torch.empty((rows, half), dtype=torch.float32, device=positions.device)
    sin = torch.empty_like(cos)
    launch(
        kv_store.angle_tables,
        (cdiv(rows, _TOKENS),),
        positions, inverse_frequencies, axes, cos, sin, rows, positions.stride(0),
        warps=2, dependent=True, HALF=half, PAD=_pad(half), TOKENS=_TOKENS,
    )  # fmt: skip
    return cos, sin


def place_rows(
    rows: PagedRows, positions: Tensor, inverse_frequencies: Tensor, axes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    count, half = rows.starts.shape[0] * rows.width, inverse_frequencies.shape[0]
    if positions.shape != (3, count) or (count > 1 and positions.stride(1) != 1):
        raise OpError(
            f"positions are {list(positions.shape)} with strides {positions.stride()}; they must "
            f"be [3, {count}], rows dense"
        )
    slots = integers(count, dtype=torch.int64, device=positions.device)
    cos = torch.empty((count, half), dtype=torch.float32, device=positions.device)
    sin = torch.empty_like(cos)
    launch(
        kv_store.place_tokens,
        (cdiv(count, _TOKENS),),
        rows.block_tables, rows.table_rows, rows.starts, rows.live, slots,
        positions, inverse_frequencies, axes, cos, sin, count, rows.width,
        rows.block_tables.stride(0), positions.stride(0),
        warps=2, dependent=True, HALF=half, PAD=_pad(half), TOKENS=_TOKENS,
    )  # fmt: skip
    return slots, cos, sin


def _pad(half: int) -> int:
    return max(16, 1 << (half - 1).bit_length())


def kv_slots(rows: PagedRows) -> Tensor:
    count = rows.starts.shape[0] * rows.width
    slots = integers(count, dtype=torch.int64, device=rows.starts.device)
    launch(
        kv_store.token_slots,
        (cdiv(count, 256),),
        rows.block_tables, rows.table_rows, rows.starts, rows.live, slots, count, rows.width,
        rows.block_tables.stride(0),
        warps=2, dependent=True, BLOCK=256,
    )  # fmt: skip
    return slots


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
    pools = pools_of(cache)
    rows, heads, size = q.shape
    group = group_of(heads, pools)
    for name, operand in (("q", q), ("k", k), ("v", v)):
        if operand.stride(2) != 1 or operand.shape[2] != pools.head_size:
            raise OpError(
                f"{name} is {list(operand.shape)} with strides {operand.stride()}; its last "
                f"dimension must hold the {pools.head_size} elements of a head side by side"
            )
    out = torch.empty((rows, heads, size), dtype=q.dtype, device=q.device)
    tokens = max(1, 1 << (_ROWS // group).bit_length() - 1)
    launch(
        kv_store.norm_rope_store,
        (cdiv(rows, tokens), pools.heads),
        q, k, v, q_scale, k_scale, cos, sin, *pools.tensors, slots, out,
        eps, rows, q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        warps=4, dependent=True,
        HEADS=heads, KV=pools.heads, D=size, R=2 * cos.shape[1], TOKENS=tokens, BLOCK=_ROWS,
        FORMAT=pools.format,
    )  # fmt: skip
    return out


OPS: Mapping[str, Callable[..., Any]] = {
    "rope_angles": rope_angles,
    "kv_slots": kv_slots,
    "place_rows": place_rows,
    "qk_norm_rope_store": qk_norm_rope_store,
}
