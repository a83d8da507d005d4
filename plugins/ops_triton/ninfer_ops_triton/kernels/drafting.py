"""Block drafters: the convolution over a block, the best tokens of a row, the walk over them."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.argmax import code_id, code_of, code_value
from ninfer_ops_triton.kernels.lib import await_inputs, dot, narrow, release_dependents, wide

NOTHING = tl.constexpr(-1)
"""Below every code."""


@triton.jit(do_not_specialize=["width"])
def block_conv_kernel(
    x, x_row, dynamic, dynamic_row, base, out, channels, width,
    SIDE: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (T, channel blocks): two taps of GROUPS groups of GROUP channels each."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = c < channels
    release_dependents(PDL)
    fixed = base + 2 * SIDE * channels + c
    b0 = tl.load(fixed, mask=live, other=0.0)
    b1 = tl.load(fixed + channels, mask=live, other=0.0)
    await_inputs(PDL)
    taps = dynamic + row * dynamic_row + 2 * SIDE * GROUPS + c // GROUP
    d0 = wide(tl.load(taps, mask=live, other=0.0))
    d1 = wide(tl.load(taps + GROUPS, mask=live, other=0.0))
    here = x + row * x_row + c
    inner = live & ((tl.zeros_like(c) + row % width) > 0)
    x0 = wide(tl.load(here, mask=live, other=0.0))
    x1 = wide(tl.load(here - x_row, mask=inner, other=0.0))
    # A tap left of the block is left out: NaN there would survive a product with zero.
    y = tl.where(inner, tl.fma(b1 + d1, x1, (b0 + d0) * x0), (b0 + d0) * x0)
    tl.store(out + row * channels + c, narrow(y, out.dtype.element_ty, INTERPRET), mask=live)


@triton.jit
def candidate_blocks(
    logits, best, stride, vocabulary, addressable, count,
    BLOCK: tl.constexpr, MOST: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``best`` i64[T, blocks, MOST]: the first codes of each block, NOTHING where there are fewer.
    Grid (T, blocks)."""
    release_dependents(PDL)
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    place = best + (row * tl.num_programs(1) + block) * MOST
    await_inputs(PDL)
    # The mask of the load is the row's even width, so that loads can be wide.
    x = tl.load(logits + row * stride + ids, ids < vocabulary, other=0.0)
    x = tl.where(x != x, float("-inf"), x)
    codes = tl.where(ids < addressable, code_of(x, ids), NOTHING)
    for index in range(count):
        top = tl.max(codes, 0)
        tl.store(place + index, top)
        codes = tl.where(codes == top, NOTHING, codes)


@triton.jit
def candidate_finish(
    best, ids, values, blocks, count,
    CODES: tl.constexpr, MOST: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ids i32[T, count] and values f32[T, count] from :func:`candidate_blocks`. Grid (T,)."""
    release_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, CODES)
    there = (at < blocks * MOST) & (at % MOST < count)
    await_inputs(PDL)
    codes = tl.load(best + row * blocks * MOST + at, there, other=NOTHING)
    for index in range(count):
        top = tl.max(codes, 0)
        tl.store(ids + row * count + index, code_id(top))
        tl.store(values + row * count + index, code_value(top))
        codes = tl.where(codes == top, NOTHING, codes)


@triton.jit
def gathered(table, tokens, rank, r, there, INTERPRET: tl.constexpr):
    """Rows ``tokens`` of ``table``, the columns ``r`` of them, in fp32."""
    places = table + tokens.to(tl.int64)[:, None] * rank + r[None, :]
    return wide(tl.load(places, mask=there & (r < rank)[None, :], other=0.0))


@triton.jit(do_not_specialize=["steps", "count"])
def pair_scores(
    ids, values, hidden, hidden_row, anchors, predecessor, successor, following, rank, steps, count,
    MOST: tl.constexpr, RANK: tl.constexpr, BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``following`` i32[B * K, MOST]: which candidate follows each candidate of the row before it,
    or the anchor, at every place. Grid (B * K,)."""
    release_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    m = tl.arange(0, MOST)
    real = m < count
    await_inputs(PDL)
    first = (tl.zeros_like(m) + row % steps) == 0
    anchor = tl.load(anchors + row // steps)
    before = tl.load(ids + (row - 1) * count + m, mask=real & (first == 0), other=0)
    before = tl.where(first, anchor, before)
    own = tl.load(ids + row * count + m, mask=real, other=0)
    scores = tl.zeros((MOST, MOST), tl.float32)
    there = (real | first)[:, None]
    for begin in range(0, RANK, BLOCK):
        r = begin + tl.arange(0, BLOCK)
        left = gathered(predecessor, before, rank, r, there, INTERPRET)
        factor = wide(tl.load(hidden + row * hidden_row + r, mask=r < rank, other=0.0))
        right = gathered(successor, own, rank, r, real[:, None], INTERPRET)
        scores = dot(left * factor[None, :], tl.trans(right), scores, INTERPRET)
    scores += tl.load(values + row * count + m, mask=real, other=float("-inf"))[None, :]
    scores = tl.where((scores == scores) & real[None, :], scores, float("-inf"))
    top = tl.max(scores, 1)
    chosen = tl.min(tl.where(scores == top[:, None], m[None, :], MOST), 1)
    tl.store(following + row * MOST + m, chosen)


@triton.jit(do_not_specialize=["steps", "count"])
def walk_pairs(
    ids, following, drafts, steps, count,
    MOST: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """drafts i32[B, K]: from the anchor on, what follows. Grid (B,)."""
    release_dependents(PDL)
    sequence = tl.program_id(0).to(tl.int64)
    m = tl.arange(0, MOST)
    place = tl.zeros([], tl.int32)
    await_inputs(PDL)
    for step in range(steps):
        row = sequence * steps + step
        table = tl.load(following + row * MOST + m)
        tokens = tl.load(ids + row * count + m, mask=m < count, other=0)
        place = tl.sum(tl.where(m == place, table, 0), 0)
        tl.store(drafts + row, tl.sum(tl.where(m == place, tokens, 0), 0))
