"""Attention of the decode route: a few rows per sequence over pages.

Two kernels: one reduces splits of the tokens, one joins them. The split length of a row is
``SPLIT`` up to 2^``FULL_BITS`` tokens and doubles with every doubling beyond, so that a row has at
most ``MOST_SPLITS`` splits; it depends on the row's length alone. The grid is for the widest block
table a call may see, bounded by a few waves; which program takes which splits changes no bits, and
programs without any leave at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import PAGE_TOKENS, AttentionMixer, KvCache, PagedRows
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.kernels import attention_decode
from ninfer_ops_triton.kv import Pools, group_of, pools_of
from ninfer_ops_triton.launch import capability, cdiv, launch, multiprocessors

SPLIT = 64
"""Tokens of a split of a short row."""

FULL_BITS = 12
"""Up to 2^12 tokens splits have SPLIT tokens."""

MOST_SPLITS = (1 << FULL_BITS) // SPLIT
TILE = 16
"""Rows times heads of one program: the least that tensor cores multiply."""

BLOCK = 32
"""Tokens that are reduced at once."""

PROGRAMS = 8
"""For each multiprocessor; where a row's splits would make more, programs take several in turn."""

STAGES, OLDER_STAGES = 4, 3
"""Blocks of the loop in flight, and one; the second before compute capability 9.0."""

LOG2E = 1.4426950408889634


def attention_mix_decode(
    stacked: Tensor,
    mixer: AttentionMixer,
    cos: Tensor,
    sin: Tensor,
    cache: KvCache,
    rows: PagedRows,
    slots: Tensor,
) -> Tensor:
    pools = pools_of(cache)
    heads, size = mixer.heads, mixer.head_size
    if (mixer.kv_heads, size) != (pools.heads, pools.head_size):
        raise OpError(
            f"the mixer has {mixer.kv_heads} key/value heads of {size}; the cache holds "
            f"{pools.heads} of {pools.head_size}"
        )
    columns = 2 * size * (heads + mixer.kv_heads)
    if stacked.shape[1] != columns or stacked.stride(1) != 1:
        raise OpError(
            f"stacked has {stacked.shape[1]} columns of stride {stacked.stride(1)}; {heads} heads "
            f"with gates, keys and values are {columns} contiguous ones"
        )
    fused = mixer.q_scale, mixer.k_scale, cos, sin, slots
    out = _attend(
        stacked, pools, rows, size**-0.5, heads, fused=fused, eps=mixer.eps, rotary=2 * cos.shape[1]
    )
    return out.view(-1, heads * size)


def paged_decode_attention(q: Tensor, cache: KvCache, rows: PagedRows, scale: float) -> Tensor:
    pools = pools_of(cache)
    _, heads, size = q.shape
    if size != pools.head_size or not q.is_contiguous():
        raise OpError(
            f"q is {list(q.shape)} with strides {q.stride()}; contiguous heads of "
            f"{pools.head_size} are needed"
        )
    return _attend(q, pools, rows, scale, heads)


def _attend(
    x: Tensor,
    pools: Pools,
    rows: PagedRows,
    scale: float,
    heads: int,
    *,
    fused: tuple[Tensor, ...] | None = None,
    eps: float = 0.0,
    rotary: int = 2,
) -> Tensor:
    """Both kernels; ``fused`` holds q_scale, k_scale, cos, sin and slots."""
    size, count = pools.head_size, x.shape[0]
    sequences, width = rows.starts.shape[0], rows.width
    if count != sequences * width:
        raise OpError(f"{count} rows are not {sequences} sequences of width {width}")
    group = group_of(heads, pools)
    tiles = cdiv(width, TILE // group)
    splits = min(MOST_SPLITS, cdiv(rows.block_tables.shape[1] * PAGE_TOKENS, SPLIT))
    columns = tiles * pools.heads * sequences
    lanes = max(1, min(splits, PROGRAMS * multiprocessors() // columns))
    acc = torch.empty((count, heads, splits, size), dtype=torch.float32, device=x.device)
    top, total = torch.empty((2, count, heads, splits), dtype=torch.float32, device=x.device)
    out = torch.empty((count, heads, size), dtype=x.dtype, device=x.device)
    extras = fused or (x, x, x, x, x)
    stages = STAGES if capability() >= (9, 0) else OLDER_STAGES
    launch(
        attention_decode.attend_split,
        (lanes * tiles, pools.heads, sequences),
        x, *pools.tensors, *extras,
        rows.block_tables, rows.table_rows, rows.starts, rows.live, acc, top, total,
        eps, scale * LOG2E, width, tiles, lanes, splits, x.stride(0),
        rows.block_tables.stride(0),
        warps=4, stages=stages, dependent=True,
        HEADS=heads, KV=pools.heads, D=size, R=rotary, BLOCK_M=TILE, BLOCK_N=BLOCK,
        SPLIT=SPLIT, FULL_BITS=FULL_BITS, FIRST=rows.first, FORMAT=pools.format,
        FUSED=fused is not None,
        STAGES=stages,
    )  # fmt: skip
    launch(
        attention_decode.combine_partials,
        (count * heads, cdiv(size, 64)),
        acc, top, total, x, rows.starts, rows.live, out, width, splits, x.stride(0),
        warps=4, dependent=True,
        HEADS=heads, D=size, BLOCK_D=64, SPLITS=MOST_SPLITS, SPLIT=SPLIT, FULL_BITS=FULL_BITS,
        GATED=fused is not None,
    )  # fmt: skip
    return out


OPS: Mapping[str, Callable[..., Any]] = {
    "attention_mix_decode": attention_mix_decode,
    "paged_decode_attention": paged_decode_attention,
}
