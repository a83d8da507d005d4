"""Attention of a few rows per sequence over its pages, split over the tokens.

The tokens of a row are cut at multiples of a split length that depends on the row's own length
(:func:`tier_of`), programs reduce one split at a time, :func:`combine_partials` joins them. What a
row's bits come from is the same whichever rows are computed beside it: blocks of tokens start at
multiples of BLOCK_N, each row keeps its own maximum and sum, a block that a row does not see adds
zeros to them, and the same binary serves every width and every number of sequences.

The rows of a drafter's block are the case WINDOW > 0: a row sees the last WINDOW tokens up to its
own, and unless CAUSAL the rest of its block as well. Its splits are counted from the first that it
sees, and their length does not grow beyond ``SPLIT << WINDOW_TIER``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.kv_store import (
    decode,
    encode,
    load_tokens,
    norm_rope,
    store_tokens,
)
from ninfer_ops_triton.kernels.lib import await_inputs, dot, narrow, release_dependents, wide

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def tier_of(length, FULL_BITS: tl.constexpr):
    """The split length is doubled once for every doubling of ``length`` beyond 2^FULL_BITS
    tokens. The exponent of an fp32 number is its whole logarithm."""
    bits = (length - 1).to(tl.float32).to(tl.int32, bitcast=True)
    return tl.maximum((bits >> 23) - (126 + FULL_BITS), 0)


@triton.jit
def tier_within(length, FULL_BITS: tl.constexpr, WINDOW: tl.constexpr, WINDOW_TIER: tl.constexpr):
    tier = tier_of(length, FULL_BITS)
    if WINDOW > 0:
        tier = tl.minimum(tier, WINDOW_TIER)
    return tier


@triton.jit
def share_of(length, splits, LEAST: tl.constexpr):
    """Tokens of each of ``splits`` even splits of ``length``: whole pages, ``LEAST`` or more."""
    return tl.maximum(tl.cdiv(tl.cdiv(length, splits), 64) * 64, LEAST)


@triton.jit
def first_seen(place, FIRST: tl.constexpr, WINDOW: tl.constexpr):
    """The first token that a row at the token ``place`` sees."""
    return tl.maximum(place + 1 - WINDOW, FIRST)


@triton.jit
def absorb(q, k, v, seen, top, total, acc, factor, INTERPRET: tl.constexpr):
    """One block of tokens into the running maximum, sum and weighted values of every row.

    ``factor`` turns products into exponents of 2. Multiply-adds are spelt out, so that no compiler
    chooses where to fuse them.
    """
    raw = dot(q, tl.trans(k), tl.zeros((q.shape[0], k.shape[0]), tl.float32), INTERPRET)
    raw = tl.where(seen, raw, float("-inf"))
    new_top = tl.maximum(top, tl.max(raw, axis=1) * factor)
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(tl.fma(raw, tl.full(raw.shape, 1.0, tl.float32) * factor, -base[:, None]))
    keep = tl.exp2(top - base)
    total = tl.fma(total, keep, tl.sum(weights, axis=1))
    acc = dot(narrow(weights, v.dtype, INTERPRET), v, acc * keep[:, None], INTERPRET)
    return new_top, total, acc


@triton.jit
def spoilt_tokens(values, scales, FORMAT: tl.constexpr):
    """Which encoded tokens [N] hold NaN or an infinity."""
    wider = wide(values)
    spoilt = tl.max(tl.where((wider - wider) != 0.0, 1, 0), axis=1)
    if FORMAT == "int8" or FORMAT == "fp8":
        spoilt = tl.maximum(spoilt, tl.max(tl.where(scales != scales, 1, 0), axis=1))
    return spoilt > 0


@triton.jit(do_not_specialize=["width", "tiles", "lanes", "max_splits"])
def attend_split(
    x, keys, values, key_scales, value_scales, q_scale, k_scale, cos, sin, slots,
    block_tables, table_rows, starts, live, partial_acc, partial_top, partial_total,
    eps, factor, width, tiles, lanes, max_splits, x_row, table_stride,
    HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, FULL_BITS: tl.constexpr,
    FIRST: tl.constexpr, FORMAT: tl.constexpr, FUSED: tl.constexpr, STAGES: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, WINDOW_TIER: tl.constexpr, SETTLED: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (lane and tile, key/value head, sequence). A tile is as many rows as fit with all
    query heads of the group into BLOCK_M; a lane takes every ``lanes``-th split.

    FUSED: ``x`` is the stacked projection; queries are normed and rotated here. So are the keys of
    the call's own tokens: a program first stores those that it needs and then reads them back with
    the rest. Programs that need the same token store the same bytes.

    Values of the call's own tokens may be NaN, and tokens are multiplied by 0 in rows that do not
    see them. So values from the first such token on are taken as 0, and rows that do see it are
    given NaN as their sum.
    """
    GROUP: tl.constexpr = HEADS // KV
    ROWS: tl.constexpr = BLOCK_M // GROUP
    NEW: tl.constexpr = 16
    tile, lane = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    head, b = tl.program_id(1), tl.program_id(2)
    if not SETTLED:
        await_inputs(PDL)
    begin, alive = tl.load(starts + b), tl.load(live + b)
    table_row = tl.load(table_rows + b).to(tl.int64)
    if SETTLED:
        await_inputs(PDL)
    # Not before: so kernels behind the next one know that those before this one are done.
    release_dependents(PDL)
    first_row = tile * ROWS
    end_row = tl.minimum(first_row + ROWS, alive)
    if first_row >= end_row:
        return
    longest = begin + end_row if CAUSAL else begin + alive
    shortest = begin + first_row + 1 if CAUSAL else longest
    low = tier_within(shortest, FULL_BITS, WINDOW, WINDOW_TIER)
    high = tier_within(longest, FULL_BITS, WINDOW, WINDOW_TIER)
    earliest = lane
    if WINDOW > 0:
        earliest += first_seen(begin + first_row, FIRST, WINDOW) // (SPLIT << low)
    if earliest * (SPLIT << low) >= longest:
        return

    table = block_tables + table_row * table_stride
    r = tl.arange(0, BLOCK_M)
    w, h = first_row + r // GROUP, head * GROUP + r % GROUP
    valid = (r < ROWS * GROUP) & (w < alive)
    row = (b * width + w).to(tl.int64)
    lengths = begin + w + 1
    if not CAUSAL:
        lengths = tl.zeros_like(w) + (begin + alive)
    tiers = tier_within(lengths, FULL_BITS, WINDOW, WINDOW_TIER)
    d = tl.arange(0, D)
    if FUSED:
        q = norm_rope(x + row * x_row + h * (2 * D), valid, row, cos, sin, q_scale, eps, D, R)
        q = narrow(q, x.dtype.element_ty, INTERPRET)
    else:
        q = tl.load(x + (row * x_row + h * D)[:, None] + d[None, :], mask=valid[:, None], other=0.0)
    offsets = tl.arange(0, BLOCK_N)

    # Rows beside each other may stand on two sides of a change of split length: a pass for each.
    for tier in tl.range(low, high + 1):
        span = SPLIT << tier
        mine = valid & (tiers == tier)
        furthest = tl.max(tl.where(mine, lengths, 0), axis=0)
        origin = lane
        if WINDOW > 0:
            lows = first_seen(begin + w, FIRST, WINDOW)
            nearest = tl.min(tl.where(mine, lows, furthest), axis=0)
            origin += nearest // span
        for split in tl.range(origin, tl.cdiv(furthest, span), lanes, num_stages=1):
            until = tl.minimum(furthest, (split + 1) * span)
            first, last = split * span // BLOCK_N, tl.cdiv(until, BLOCK_N)
            if WINDOW > 0:
                first = tl.maximum(first, nearest // BLOCK_N)
            page = tl.load(table + first * BLOCK_N // 64)

            clean = until
            for new in tl.range(tl.maximum(split * span, begin), until, NEW, num_stages=1):
                tokens = new + tl.arange(0, NEW)
                fresh = tokens < until
                if FUSED:
                    source = (b * width + tokens - begin).to(tl.int64)
                    base = x + source * x_row + (HEADS * 2 * D + head * D)
                    slot = tl.load(slots + source, mask=fresh, other=-1)
                    k = norm_rope(base, fresh, source, cos, sin, k_scale, eps, D, R)
                    k, ks = encode(k, NEW, D, FORMAT, keys.dtype.element_ty, INTERPRET)
                    store_tokens(keys, key_scales, k, ks, slot, slot >= 0, head, KV, D, FORMAT)
                    v = base[:, None] + (KV * D + d)[None, :]
                    v = wide(tl.load(v, mask=fresh[:, None], other=0.0))
                    v, vs = encode(v, NEW, D, FORMAT, values.dtype.element_ty, INTERPRET)
                    store_tokens(values, value_scales, v, vs, slot, slot >= 0, head, KV, D, FORMAT)
                else:
                    own = tl.load(table + tokens // 64, mask=fresh, other=0).to(tl.int64)
                    places = own * 64 + tokens % 64
                    v, vs = load_tokens(values, value_scales, places, fresh, head, KV, D, FORMAT)
                spoilt = tl.min(
                    tl.where(fresh & spoilt_tokens(v, vs, FORMAT), tokens, until), axis=0
                )
                clean = tl.minimum(clean, spoilt)
            if FUSED:
                tl.debug_barrier()

            top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
            total = tl.zeros((BLOCK_M,), tl.float32)
            acc = tl.zeros((BLOCK_M, D), tl.float32)
            for block in tl.range(first, last, num_stages=STAGES):
                following = tl.load(table + tl.minimum(block + 1, last - 1) * BLOCK_N // 64)
                tokens = block * BLOCK_N + offsets
                places = page.to(tl.int64) * 64 + (block * BLOCK_N) % 64 + offsets
                k, ks = load_tokens(keys, key_scales, places, tokens < until, head, KV, D, FORMAT)
                usable = tokens < clean
                if WINDOW > 0:
                    usable &= tokens >= nearest
                v, vs = load_tokens(values, value_scales, places, usable, head, KV, D, FORMAT)
                seen = tokens[None, :] < lengths[:, None]
                if WINDOW > 0:
                    seen &= tokens[None, :] >= lows[:, None]
                elif FIRST > 0:
                    seen &= tokens[None, :] >= FIRST
                top, total, acc = absorb(
                    q,
                    decode(k, ks, BLOCK_N, D, FORMAT, q.dtype, INTERPRET),
                    decode(v, vs, BLOCK_N, D, FORMAT, q.dtype, INTERPRET),
                    seen, top, total, acc, factor, INTERPRET,
                )  # fmt: skip
                page = following

            total = tl.where(lengths > clean, tl.where(clean < until, float("nan"), total), total)
            made = mine & (split * span < lengths)
            part = (row * HEADS + h) * max_splits + split
            if WINDOW > 0:
                made &= split >= lows // span
                part -= lows // span
            tl.store(partial_top + part, top, mask=made)
            tl.store(partial_total + part, total, mask=made)
            tl.store(partial_acc + (part * D)[:, None] + d[None, :], acc, mask=made[:, None])


@triton.jit(do_not_specialize=["width", "max_splits"])
def combine_partials(
    partial_acc, partial_top, partial_total, x, starts, live, out, width, max_splits, x_row,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr,
    SPLIT: tl.constexpr, FULL_BITS: tl.constexpr, GATED: tl.constexpr,
    FIRST: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, WINDOW_TIER: tl.constexpr,
    EVEN: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (row and head, part of D): join the splits, multiply by the gate's sigmoid.

    EVEN: they are those of a chunk, ``max_splits`` even ones of at least SPLIT tokens.
    """
    release_dependents(PDL)
    part = tl.program_id(0).to(tl.int64)
    row, h = part // HEADS, part % HEADS
    b, w = row // width, row % width
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    place = out + part * D + d
    # What was there before the splits' kernel began: that one releases no kernel until it is.
    begin, alive = tl.load(starts + b), tl.load(live + b)
    if GATED:
        gate = wide(tl.load(x + row * x_row + h * (2 * D) + D + d))
    await_inputs(PDL)
    if w >= alive:
        tl.store(place, tl.zeros((BLOCK_D,), out.dtype.element_ty))
        return
    length = (begin + w + 1).to(tl.int32) if CAUSAL else begin + alive
    if EVEN:
        span = share_of(begin + alive, max_splits, SPLIT)
    else:
        span = SPLIT << tier_within(length, FULL_BITS, WINDOW, WINDOW_TIER)
    s = tl.arange(0, SPLITS)
    splits = tl.cdiv(length, span)
    if WINDOW > 0:
        splits -= first_seen((begin + w).to(tl.int32), FIRST, WINDOW) // span
    made = s < splits
    tops = tl.load(partial_top + part * max_splits + s, mask=made, other=float("-inf"))
    totals = tl.load(partial_total + part * max_splits + s, mask=made, other=0.0)
    parts = partial_acc + ((part * max_splits + s) * D)[:, None] + d[None, :]
    parts = tl.load(parts, mask=made[:, None], other=0.0)
    weights = tl.where(made, tl.exp2(tops - tl.max(tops, axis=0)), 0.0)
    result = tl.sum(parts * weights[:, None], axis=0) / tl.sum(totals * weights, axis=0)
    if GATED:
        result = result / (1.0 + tl.exp2(-gate * LOG2E))
    tl.store(place, narrow(result, out.dtype.element_ty, INTERPRET))
