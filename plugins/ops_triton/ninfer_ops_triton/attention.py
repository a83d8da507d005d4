"""Attention of the decode route: a few rows per sequence over pages.

Two kernels: one reduces splits of the tokens, one joins them. The split length of a row is
``SPLIT`` up to 2^``FULL_BITS`` tokens and doubles with every doubling beyond, so that a row has at
most ``MOST_SPLITS`` splits; it depends on the row's length alone. The grid is for the widest block
table a call may see, bounded by a few waves; which program takes which splits changes no bits, and
programs without any leave at once.

A drafter's block goes the same way. Its rows need not have the bits of one-row calls, so that a
program takes more of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import PAGE_TOKENS, AttentionMixer, KvCache, PagedRows
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.kernels import attention_decode
from ninfer_ops_triton.kv import Pools, group_of, pools_of
from ninfer_ops_triton.launch import capability, cdiv, launch, multiprocessors, next_power_of_2

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

WIDEST = 16
"""Rows of a block."""

ANY_WINDOW = 1 << 30
"""More than any sequence's tokens."""

LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Which tokens rows see, and rows times heads of one program. ``window`` 0 is decode."""

    causal: bool = True
    window: int = 0
    tile: int = TILE

    def tier(self, width: int) -> int:
        """Most doublings of the split length: with them a window has at most MOST_SPLITS splits."""
        tier = 0
        while cdiv(self.window + width, SPLIT << tier) >= MOST_SPLITS:
            tier += 1
        return tier

    def splits(self, width: int, columns: int) -> int:
        """Splits that a row may have, with ``columns`` pages in the block table.

        A window bounds them only where no split is ever longer than SPLIT: elsewhere a row that is
        shorter than its window has shorter splits than the window's, up to MOST_SPLITS of them.
        """
        most: int = min(MOST_SPLITS, cdiv(columns * PAGE_TOKENS, SPLIT))
        if self.window and self.tier(width) == 0:
            most = min(most, cdiv(self.window + width, SPLIT) + 1)
        return most


_DECODE = _Pattern()


def attention_mix_decode(
    stacked: Tensor,
    mixer: AttentionMixer,
    cos: Tensor,
    sin: Tensor,
    cache: KvCache,
    rows: PagedRows,
    slots: Tensor,
    settled: bool = False,
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
        stacked, pools, rows, size**-0.5, heads, fused=fused, eps=mixer.eps,
        rotary=2 * cos.shape[1], settled=settled,
    )  # fmt: skip
    return out.view(-1, heads * size)


def paged_decode_attention(q: Tensor, cache: KvCache, rows: PagedRows, scale: float) -> Tensor:
    return _attend(q, _checked_pools(q, cache), rows, scale, q.shape[1])


def block_attention(
    q: Tensor,
    cache: KvCache,
    rows: PagedRows,
    scale: float,
    *,
    causal: bool,
    window: int | None = None,
) -> Tensor:
    pools, width = _checked_pools(q, cache), rows.width
    _, heads, size = q.shape
    if width > WIDEST:
        raise OpError(f"a block has {width} rows; 1 to {WIDEST} have kernels")
    if window is not None and window < width:
        raise OpError(f"window is {window}; it must hold the {width} rows of a block")
    most = 64 if size <= 128 else 32
    tile = min(most, max(TILE, next_power_of_2(width * group_of(heads, pools))))
    seen = _Pattern(causal, ANY_WINDOW if window is None else window, tile)
    return _attend(q, pools, rows, scale, heads, seen=seen)


def _checked_pools(q: Tensor, cache: KvCache) -> Pools:
    pools = pools_of(cache)
    if q.ndim != 3 or q.shape[2] != pools.head_size or not q.is_contiguous():
        raise OpError(
            f"q is {list(q.shape)} with strides {q.stride()}; contiguous heads of "
            f"{pools.head_size} are needed"
        )
    return pools


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
    seen: _Pattern = _DECODE,
    settled: bool = False,
) -> Tensor:
    """Both kernels; ``fused`` holds q_scale, k_scale, cos, sin and slots."""
    size, count = pools.head_size, x.shape[0]
    sequences, width = rows.starts.shape[0], rows.width
    if count != sequences * width:
        raise OpError(f"{count} rows are not {sequences} sequences of width {width}")
    tiles = cdiv(width, seen.tile // group_of(heads, pools))
    splits = seen.splits(width, rows.block_tables.shape[1])
    columns = tiles * pools.heads * sequences
    lanes = max(1, min(splits, PROGRAMS * multiprocessors() // columns))
    acc = torch.empty((count, heads, splits, size), dtype=torch.float32, device=x.device)
    top, total = torch.empty((2, count, heads, splits), dtype=torch.float32, device=x.device)
    out = torch.empty((count, heads, size), dtype=x.dtype, device=x.device)
    extras = fused or (x, x, x, x, x)
    stages = STAGES if capability() >= (9, 0) else OLDER_STAGES
    pattern: dict[str, Any] = {
        "SPLIT": SPLIT, "FULL_BITS": FULL_BITS, "FIRST": rows.first, "CAUSAL": seen.causal,
        "WINDOW": seen.window, "WINDOW_TIER": seen.tier(width) if seen.window else 0,
    }  # fmt: skip
    launch(
        attention_decode.attend_split,
        (lanes * tiles, pools.heads, sequences),
        x, *pools.tensors, *extras,
        rows.block_tables, rows.table_rows, rows.starts, rows.live, acc, top, total,
        eps, scale * LOG2E, width, tiles, lanes, splits, x.stride(0),
        rows.block_tables.stride(0),
        warps=4 if seen.tile < 64 else 8, stages=stages, dependent=True,
        HEADS=heads, KV=pools.heads, D=size, R=rotary, BLOCK_M=seen.tile, BLOCK_N=BLOCK,
        FORMAT=pools.format, FUSED=fused is not None, STAGES=stages, SETTLED=settled,
        **pattern,
    )  # fmt: skip
    launch(
        attention_decode.combine_partials,
        (count * heads, cdiv(size, 64)),
        acc, top, total, x, rows.starts, rows.live, out, width, splits, x.stride(0),
        warps=4, dependent=True,
        HEADS=heads, D=size, BLOCK_D=64, SPLITS=MOST_SPLITS, GATED=fused is not None, EVEN=False,
        **pattern,
    )  # fmt: skip
    return out


OPS: Mapping[str, Callable[..., Any]] = {
    "attention_mix_decode": attention_mix_decode,
    "block_attention": block_attention,
    "paged_decode_attention": paged_decode_attention,
}
