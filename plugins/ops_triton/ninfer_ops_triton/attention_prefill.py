"""Attention of a prompt chunk over pages.

A program takes a key/value head, a tile of rows and a split of the tokens. Chunks whose heads and
rows occupy the device have one split. Fewer rows have more (:func:`splits_of`), of even length,
which depends on the tokens up to the chunk's last, and the decode route's kernel joins them: one
that has a single live split gives the bits of a chunk that is not split. The number of splits
depends on rows, heads and the device alone, so that the same chunk at the same place has the same
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import KvCache, PagedRows
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.attention import LOG2E, paged_decode_attention
from ninfer_ops_triton.kernels import attention_decode, attention_prefill
from ninfer_ops_triton.kv import group_of, pools_of
from ninfer_ops_triton.launch import capability, cdiv, launch, multiprocessors

FEW_ROWS = 16
"""Up to so many rows the kernels of the decode route are used, which split the tokens."""

LARGE, SMALL, OLDER = (128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2)
"""Rows times heads of a program, tokens that it reduces at once, its warps, its stages: for many
rows, for few, and for devices before compute capability 9.0, which have less shared memory."""


MOST_SPLITS = 32
"""Of the tokens of a chunk."""

LEAST_SHARE = 256
"""Tokens of a split at least, whole pages: fewer take less time than their joining."""


def paged_prefill_attention(q: Tensor, cache: KvCache, rows: PagedRows, scale: float) -> Tensor:
    if rows.starts.shape[0] != 1 or rows.width != q.shape[0]:
        raise OpError(
            f"a chunk is one sequence of {q.shape[0]} rows; there are {rows.starts.shape[0]} of "
            f"width {rows.width}"
        )
    if rows.width <= FEW_ROWS:
        return paged_decode_attention(q, cache, rows, scale)
    pools = pools_of(cache)
    count, heads, size = q.shape
    group = group_of(heads, pools)
    if size != pools.head_size or not q.is_contiguous():
        raise OpError(
            f"q is {list(q.shape)} with strides {q.stride()}; contiguous heads of "
            f"{pools.head_size} are needed"
        )
    block, tokens, warps, stages = _shape(count, group, pools.heads)
    tiles = cdiv(count, block // group)
    splits = splits_of(tiles * pools.heads)
    out = torch.empty_like(q)
    partials = _partials(q, splits) if splits > 1 else (out, out, out)
    launch(
        attention_prefill.attend_chunk,
        (pools.heads, tiles, splits),
        q, *pools.tensors, rows.block_tables, rows.table_rows, rows.starts, rows.live, out,
        *partials, scale * LOG2E, count, rows.block_tables.stride(0),
        warps=warps, stages=stages, dependent=True,
        HEADS=heads, KV=pools.heads, D=size, BLOCK_M=block, BLOCK_N=tokens,
        FORMAT=pools.format, STAGES=stages, LEAST=LEAST_SHARE if splits > 1 else 0,
    )  # fmt: skip
    if splits > 1:
        launch(
            attention_decode.combine_partials,
            (count * heads, 1),
            *partials, q, rows.starts, rows.live, out, count, splits, q.stride(0),
            warps=4, dependent=True,
            HEADS=heads, D=size, BLOCK_D=size, SPLITS=MOST_SPLITS, SPLIT=LEAST_SHARE, FULL_BITS=0,
            GATED=False, FIRST=0, CAUSAL=True, WINDOW=0, WINDOW_TIER=0, EVEN=True,
        )  # fmt: skip
    return out


def splits_of(programs: int) -> int:
    """Splits of the tokens where heads and rows alone make ``programs``: as many as make one
    program for each multiprocessor. Where that leaves a third or more of few idle, two for each.

    All partial results together are so at most two tiles of BLOCK_M heads for each multiprocessor:
    17 MiB at 132 of them and heads of 256.
    """
    once, twice = multiprocessors() // programs, 2 * multiprocessors() // programs
    splits = twice if once <= 2 and twice > 2 * once else once
    return max(1, min(MOST_SPLITS, splits))


def _partials(q: Tensor, splits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sums f32[rows, heads, splits, size], then maxima and totals f32[rows, heads, splits]."""
    count, heads, size = q.shape
    acc = torch.empty((count, heads, splits, size), dtype=torch.float32, device=q.device)
    top, total = torch.empty((2, count, heads, splits), dtype=torch.float32, device=q.device)
    return acc, top, total


def _shape(count: int, group: int, heads: int) -> tuple[int, int, int, int]:
    if capability() < (9, 0):
        return OLDER
    return LARGE if cdiv(count, LARGE[0] // group) * heads >= multiprocessors() else SMALL


OPS: Mapping[str, Callable[..., Any]] = {"paged_prefill_attention": paged_prefill_attention}
