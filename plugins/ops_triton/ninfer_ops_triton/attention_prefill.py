"""Attention of a prompt chunk over pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import KvCache, PagedRows
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.attention import LOG2E, paged_decode_attention
from ninfer_ops_triton.kernels import attention_prefill
from ninfer_ops_triton.kv import group_of, pools_of
from ninfer_ops_triton.launch import capability, cdiv, launch, multiprocessors

FEW_ROWS = 16
"""Up to so many rows the kernels of the decode route are used, which split the tokens."""

LARGE, SMALL, OLDER = (128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2)
"""Rows times heads of a program, tokens that it reduces at once, its warps, its stages: for many
rows, for few, and for devices before compute capability 9.0, which have less shared memory."""


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
    out = torch.empty_like(q)
    launch(
        attention_prefill.attend_chunk,
        (pools.heads, cdiv(count, block // group)),
        q, *pools.tensors, rows.block_tables, rows.table_rows, rows.starts, rows.live, out,
        scale * LOG2E, count, rows.block_tables.stride(0),
        warps=warps, stages=stages, dependent=True,
        HEADS=heads, KV=pools.heads, D=size, BLOCK_M=block, BLOCK_N=tokens,
        FORMAT=pools.format, STAGES=stages,
    )  # fmt: skip
    return out


def _shape(count: int, group: int, heads: int) -> tuple[int, int, int, int]:
    if capability() < (9, 0):
        return OLDER
    return LARGE if cdiv(count, LARGE[0] // group) * heads >= multiprocessors() else SMALL


OPS: Mapping[str, Callable[..., Any]] = {"paged_prefill_attention": paged_prefill_attention}
