"""One draw per row from the sampling law, without sorting the vocabulary.

A token's mass is ``exp((x - top) / temperature)`` in whole units of 2^-44, so sums of masses are
exact integers and no order of adding can change a draw. Which tokens a cut (top-k, top-p) keeps is
decided among *candidates*: the first tokens of the row by code, collected with the help of a
histogram. A row whose cut does not lie among its candidates is left to :mod:`.cut`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels import lib
from ninfer_ops_triton.kernels.argmax import (
    BROKEN,
    CODE_BITS,
    ID_BITS,
    LAST_ID,
    LAWLESS,
    code_id,
    code_of,
    code_value,
)
from ninfer_ops_triton.kernels.philox import number, share

UNIT = tl.constexpr(float(1 << 44))
STATE = tl.constexpr(32)
"""Words i64 of a row that :mod:`.cut` finishes: need (bit 0: top-k, bit 1: top-p), k, total mass;
from 4 on, three words for each step."""


@triton.jit
def mass_of(x, top, temperature):
    """A token's weight relative to the row's first one: fp32 in 0..1, and its mass i64."""
    below = x - top
    ratio = tl.where(below == 0, 1.0, tl.exp(tl.div_rn(below, temperature)))
    return ratio, (ratio * UNIT).to(tl.int64)


@triton.jit
def load_block(logits, processed, plain, row, ids, stride, vocabulary, addressable):
    """Processed logits of a block; -inf outside of the row. A plain row has only raw ones."""
    # The mask of the loads is the row's even width, so that they can be wide.
    inside = ids < vocabulary
    base = row.to(tl.int64)
    if tl.load(plain + row) != 0:
        x = tl.load(logits + base * stride + ids, inside, other=float("-inf"))
    else:
        x = tl.load(processed + base * vocabulary + ids, inside, other=float("-inf"))
    return tl.where(ids < addressable, x, float("-inf"))


@triton.jit
def row_codes(best, row, blocks, BLOCKS: tl.constexpr):
    """The best codes of the row's blocks, -1 beyond them."""
    block = tl.arange(0, BLOCKS)
    return tl.load(best + row * blocks + block, block < blocks, other=-1)


@triton.jit
def row_sum(values, row, blocks, BLOCKS: tl.constexpr):
    block = tl.arange(0, BLOCKS)
    return tl.sum(tl.load(values + row * blocks + block, block < blocks, other=0), 0)


@triton.jit
def draws(first, temperature):
    """Whether a row with this first code draws from a law, rather than taking its maximum or 0."""
    return (first < LAWLESS) & (temperature > 0) & (tl.abs(code_value(first)) < float("inf"))


@triton.jit
def bin_of(x, top, least, BINS: tl.constexpr):
    """A bin that never decreases with falling x: half of the bins divide ``least..top`` evenly,
    the others are 32 an octave of the distance below it. What lies beyond is in the last bin."""
    span = top - least
    span = tl.where(span > 1e-30, span, 1.0)
    y = (top - x) * (1.0 / span)
    even = (tl.minimum(y, 1.0) * (BINS // 2)).to(tl.int32)
    octaves = BINS // 2 + ((y.to(tl.int32, bitcast=True) - 0x3F800000) >> 18)
    bins = tl.minimum(tl.where(y < 1.0, even, octaves), BINS - 1)
    return tl.where(x > float("-inf"), bins, BINS - 1)


@triton.jit
def most_mass(bins, top, least, temperature, BINS: tl.constexpr):
    """The weight fp32 that a token in a bin has at most."""
    span = top - least
    span = tl.where(span > 1e-30, span, 1.0)
    octaves = (0x3F800000 + ((bins - BINS // 2) << 18)).to(tl.float32, bitcast=True)
    y = tl.where(bins < BINS // 2, bins.to(tl.float32) / (BINS // 2), octaves)
    return tl.exp(-(y * span) / temperature)


@triton.jit
def least_best(codes, top):
    """The smallest of the blocks' maxima that is not -inf: a yardstick of the row's spread."""
    x = code_value(codes)
    return tl.min(tl.where((codes >= 0) & (x > float("-inf")), x, top), 0)


@triton.jit
def top_p_mass(top_p, total):
    """The least whole mass that is ``top_p`` of ``total`` or more, at least 1."""
    wanted = top_p.to(tl.float64) * total.to(tl.float64)
    whole = wanted.to(tl.int64)
    whole += (whole.to(tl.float64) < wanted).to(tl.int64)
    return tl.minimum(tl.maximum(whole, 1), total)


@triton.jit
def weigh_rows(
    logits,
    processed,
    plain,
    best,
    finite,
    masses,
    kept,
    histogram,
    entries,
    temperature,
    top_k,
    top_p,
    min_p,
    stride,
    vocabulary,
    addressable,
    BINS: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """``masses`` and ``kept`` i64[T, blocks]: all mass of a block, and that of tokens which min-p
    keeps; ``histogram`` i32[T, BINS] of rows with a cut. Grid (T, blocks)."""
    lib.release_dependents(PDL)
    row, block, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    lib.await_inputs(PDL)
    entry = tl.load(entries + row)
    heat = tl.load(temperature + entry)
    codes = row_codes(best, row, blocks, BLOCKS)
    first = tl.max(codes, 0)
    if draws(first, heat):
        top = code_value(first)
        x = load_block(logits, processed, plain, row, ids, stride, vocabulary, addressable)
        ratio, mass = mass_of(x, top, heat)
        place = row * blocks + block
        tl.store(masses + place, tl.sum(mass, 0))
        keeps = ratio >= tl.load(min_p + entry)
        tl.store(kept + place, tl.sum(tl.where(keeps, mass, 0), 0))
        k, count = tl.load(top_k + entry), row_sum(finite, row, blocks, BLOCKS)
        if ((k > 0) & (k < count)) | (tl.load(top_p + entry) < 1.0):
            bins = bin_of(x, top, least_best(codes, top), BINS)
            counts = tl.histogram(bins, BINS)
            bins = tl.arange(0, BINS)
            given = (counts > 0) & (bins < BINS - 1)
            tl.atomic_add(histogram + row * BINS + bins, counts, mask=given, sem="relaxed")


@triton.jit
def gather_candidates(
    logits,
    processed,
    plain,
    best,
    finite,
    masses,
    histogram,
    found,
    candidates,
    entries,
    temperature,
    top_k,
    top_p,
    stride,
    vocabulary,
    addressable,
    CANDIDATES: tl.constexpr,
    BINS: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """``candidates`` i64[T, CANDIDATES]: codes of the row's first tokens in any order, whole bins
    of them, and ``found`` i32[T] how many; as few as the cut needs, where that is known. Grid
    (T, blocks)."""
    lib.release_dependents(PDL)
    row, block, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    lib.await_inputs(PDL)
    entry = tl.load(entries + row)
    heat, p, k = tl.load(temperature + entry), tl.load(top_p + entry), tl.load(top_k + entry)
    codes = row_codes(best, row, blocks, BLOCKS)
    first = tl.max(codes, 0)
    count = row_sum(finite, row, blocks, BLOCKS)
    cut = (k > 0) & (k < count)
    if draws(first, heat) & (cut | (p < 1.0)):
        top = code_value(first)
        least = least_best(codes, top)
        limit = BINS - 1
        if count > CANDIDATES:
            bins = tl.arange(0, BINS)
            counts = tl.load(histogram + row * BINS + bins)
            sums = tl.cumsum(counts, 0)
            limit = tl.minimum(tl.sum((sums <= CANDIDATES).to(tl.int32), 0), BINS - 1) - 1
            if cut:
                limit = tl.minimum(limit, tl.sum((sums < k).to(tl.int32), 0))
            else:
                # Whole bins until what is left beyond them can hold no part of the nucleus. The
                # margin is for fp32; were it too small, the row would take the longer way.
                counts = tl.where(bins == BINS - 1, count - tl.max(sums, 0), counts)
                beyond = most_mass(bins, top, least, heat, BINS) * counts.to(tl.float32)
                beyond = tl.sum(beyond, 0) - tl.cumsum(beyond, 0)
                total = row_sum(masses, row, blocks, BLOCKS).to(tl.float32) / UNIT
                inside = beyond > total * (1.0 - p) * 0.99
                limit = tl.minimum(limit, tl.sum(inside.to(tl.int32), 0))
        own = tl.load(best + row * blocks + block)
        if bin_of(code_value(own), top, least, BINS) <= limit:
            x = load_block(logits, processed, plain, row, ids, stride, vocabulary, addressable)
            chosen = (bin_of(x, top, least, BINS) <= limit) & (x > float("-inf"))
            rank = tl.cumsum(chosen.to(tl.int32), 0)
            place = tl.atomic_add(found + row, tl.max(rank, 0), sem="relaxed") + rank - 1
            chosen = chosen & (place < CANDIDATES)
            tl.store(candidates + row * CANDIDATES + place, code_of(x, ids), chosen)


@triton.jit
def descend(codes, weights, wanted, BITS: tl.constexpr):
    """The code at which weights, added up from the largest code down, first reach ``wanted``.

    codes i64[N] below 2^BITS, or -1 with weight 0; weights i64[N]; 1 <= wanted <= their sum. Four
    bits are settled at a time."""
    digits = tl.arange(0, 16)
    prefix = wanted * 0
    for step in range(BITS // 4):
        shift = BITS - 4 - 4 * step
        under = (codes >> (shift + 4)) == prefix
        digit = tl.where(under, (codes >> shift) & 15, 16)
        mine = digit[:, None] == digits[None, :]
        sums = tl.sum(tl.where(mine, weights[:, None], 0), 0)
        reach = tl.sum(sums, 0) - tl.cumsum(sums, 0) + sums
        settled = tl.max(tl.where(reach >= wanted, digits, 0), 0)
        wanted -= tl.sum(tl.where(digits > settled, sums, 0), 0)
        prefix = prefix * 16 + settled
    return prefix


@triton.jit
def choose(candidates, count, cut, k, p, least, total, top, heat, uniform, SIZE: tl.constexpr):
    """The token drawn from the first SIZE candidates, and what is left to do: bit 0 when the top-k
    cut lies beyond them, bit 1 when a top-p cut is still to be made."""
    index = tl.arange(0, SIZE)
    codes = tl.load(candidates + index, index < count, other=-1)
    alive = codes >= 0
    ratio, mass = mass_of(tl.where(alive, code_value(codes), top), top, heat)
    mass = tl.where(alive, mass, 0)
    nucleus = p < 1.0
    need = tl.where(cut & (k > count), 1, 0)
    if cut & (k <= count):
        if k < count:
            last = descend(codes, alive.to(tl.int64), k.to(tl.int64), CODE_BITS)
            mass = tl.where(codes >= last, mass, 0)
        total = tl.sum(mass, 0)
    if nucleus:
        wanted = top_p_mass(p, total)
        if (need != 0) | (tl.sum(mass, 0) < wanted):
            need += 2
        else:
            last = descend(codes, mass, wanted, CODE_BITS)
            mass = tl.where(codes >= last, mass, 0)
    token = 0
    if need == 0:
        mass = tl.where(ratio >= least, mass, 0)
        wanted = share(uniform, tl.sum(mass, 0)) + 1
        backwards = tl.where(alive, codes & LAST_ID, -1)
        token = code_id(descend(backwards, mass, wanted, ID_BITS))
    return token, need


@triton.jit
def draw_everywhere(
    logits, processed, plain, kept, row, stride, vocabulary, addressable, blocks,
    least, top, heat, uniform, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The token of a row without a cut."""
    block = tl.arange(0, BLOCKS)
    mass = tl.load(kept + row * blocks + block, block < blocks, other=0)
    wanted = share(uniform, tl.sum(mass, 0))
    chosen = tl.sum((tl.cumsum(mass, 0) <= wanted).to(tl.int32), 0)
    wanted -= tl.sum(tl.where(block < chosen, mass, 0), 0)
    ids = chosen * BLOCK + tl.arange(0, BLOCK)
    x = load_block(logits, processed, plain, row, ids, stride, vocabulary, addressable)
    ratio, mass = mass_of(x, top, heat)
    sums = tl.cumsum(tl.where(ratio >= least, mass, 0), 0)
    return chosen * BLOCK + tl.sum((sums <= wanted).to(tl.int32), 0)


@triton.jit
def pick_rows(
    logits,
    processed,
    plain,
    best,
    finite,
    masses,
    kept,
    found,
    candidates,
    state,
    sums,
    tokens,
    broken,
    entries,
    temperature,
    top_k,
    top_p,
    min_p,
    seeds,
    positions,
    purpose,
    stride,
    vocabulary,
    addressable,
    blocks,
    SUMS: tl.constexpr,
    SMALL: tl.constexpr,
    CANDIDATES: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """tokens i32[T] and broken bool[T], except tokens of rows that are left to the kernels of
    :mod:`.cut` by ``state`` i64[T, STATE]; ``sums`` i64[T, SUMS] is cleared for those. Grid (T,).
    """
    lib.release_dependents(PDL)
    row = tl.program_id(0)
    lib.await_inputs(PDL)
    entry = tl.load(entries + row)
    heat = tl.load(temperature + entry)
    first = tl.max(row_codes(best, row, blocks, BLOCKS), 0)
    token = tl.where(first < LAWLESS, code_id(first), 0)
    need = 0
    if heat > 0:
        token = 0
    if draws(first, heat):
        top = code_value(first)
        k, p = tl.load(top_k + entry), tl.load(top_p + entry)
        least = tl.load(min_p + entry)
        uniform = number(tl.load(seeds + entry), tl.load(positions + row), purpose)
        cut = (k > 0) & (k < row_sum(finite, row, blocks, BLOCKS))
        if cut | (p < 1.0):
            total = row_sum(masses, row, blocks, BLOCKS)
            count = tl.load(found + row)
            mine = candidates + row * CANDIDATES
            if count <= SMALL:
                token, need = choose(
                    mine, count, cut, k, p, least, total, top, heat, uniform, SMALL
                )
            else:
                token, need = choose(
                    mine, count, cut, k, p, least, total, top, heat, uniform, CANDIDATES
                )
            if need != 0:
                tl.store(state + row * STATE + 1, k.to(tl.int64))
                tl.store(state + row * STATE + 2, total)
                place = tl.arange(0, 1024)
                for start in range(0, SUMS, 1024):
                    empty = tl.zeros([1024], tl.int64)
                    tl.store(sums + row * SUMS + start + place, empty)
        else:
            token = draw_everywhere(
                logits, processed, plain, kept, row, stride, vocabulary, addressable, blocks,
                least, top, heat, uniform, BLOCKS, BLOCK,
            )  # fmt: skip
    tl.store(state + row * STATE, need)
    tl.store(tokens + row, tl.minimum(token, vocabulary - 1))
    tl.store(broken + row, first == BROKEN)
