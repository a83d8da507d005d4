"""The sampling law itself, written out: what :mod:`.draw` and :mod:`.cut` draw one token from.

Where the draw picks a token among what the cuts keep, these kernels leave the last code that is
kept and the mass of all that is; each token's share of it follows from its own logit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels import lib
from ninfer_ops_triton.kernels.argmax import (
    CODE_BITS,
    LAWLESS,
    code_id,
    code_of,
    code_value,
    key_value,
    order_key,
)
from ninfer_ops_triton.kernels.cut import last_kept
from ninfer_ops_triton.kernels.draw import (
    STATE,
    descend,
    draws,
    load_block,
    mass_of,
    row_codes,
    row_sum,
    top_p_mass,
)

SHARES = tl.constexpr(2)
"""Words i64 of a row: its last kept code, and the mass of all tokens that are kept."""


@triton.jit
def settle(candidates, count, cut, k, p, least, total, top, heat, SIZE: tl.constexpr):
    """The last code that both cuts keep and the mass of what min-p keeps up to it, from the first
    SIZE candidates; and what is left to do, as :func:`.draw.choose` has it."""
    index = tl.arange(0, SIZE)
    codes = tl.load(candidates + index, index < count, other=-1)
    alive = codes >= 0
    ratio, mass = mass_of(tl.where(alive, code_value(codes), top), top, heat)
    mass = tl.where(alive, mass, 0)
    need = tl.where(cut & (k > count), 1, 0)
    last = total * 0
    if cut & (k <= count):
        last = descend(codes, alive.to(tl.int64), k.to(tl.int64), CODE_BITS)
        mass = tl.where(codes >= last, mass, 0)
        total = tl.sum(mass, 0)
    if p < 1.0:
        wanted = top_p_mass(p, total)
        if (need != 0) | (tl.sum(mass, 0) < wanted):
            need += 2
        else:
            last = descend(codes, mass, wanted, CODE_BITS)
            mass = tl.where(codes >= last, mass, 0)
    return last, tl.sum(tl.where(ratio >= least, mass, 0), 0), need


@triton.jit
def settle_rows(
    best,
    finite,
    masses,
    kept,
    found,
    candidates,
    state,
    sums,
    shares,
    entries,
    temperature,
    top_k,
    top_p,
    min_p,
    blocks,
    SUMS: tl.constexpr,
    SMALL: tl.constexpr,
    CANDIDATES: tl.constexpr,
    BLOCKS: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """``shares`` i64[T, SHARES], except of rows that are left to the kernels of :mod:`.cut` by
    ``state``, as :func:`.draw.pick_rows` leaves them. Grid (T,)."""
    lib.release_dependents(PDL)
    row = tl.program_id(0)
    lib.await_inputs(PDL)
    entry = tl.load(entries + row)
    heat = tl.load(temperature + entry)
    first = tl.max(row_codes(best, row, blocks, BLOCKS), 0)
    need = 0
    if draws(first, heat):
        top = code_value(first)
        k, p = tl.load(top_k + entry), tl.load(top_p + entry)
        least = tl.load(min_p + entry)
        cut = (k > 0) & (k < row_sum(finite, row, blocks, BLOCKS))
        last = first * 0
        mass = row_sum(kept, row, blocks, BLOCKS)
        if cut | (p < 1.0):
            total = row_sum(masses, row, blocks, BLOCKS)
            count = tl.load(found + row)
            mine = candidates + row * CANDIDATES
            if count <= SMALL:
                last, mass, need = settle(mine, count, cut, k, p, least, total, top, heat, SMALL)
            else:
                last, mass, need = settle(
                    mine, count, cut, k, p, least, total, top, heat, CANDIDATES
                )
            if need != 0:
                tl.store(state + row * STATE + 1, k.to(tl.int64))
                tl.store(state + row * STATE + 2, total)
                place = tl.arange(0, 1024)
                for start in range(0, SUMS, 1024):
                    empty = tl.zeros([1024], tl.int64)
                    tl.store(sums + row * SUMS + start + place, empty)
        tl.store(shares + row * SHARES, last)
        tl.store(shares + row * SHARES + 1, mass)
    tl.store(state + row * STATE, need)


@triton.jit
def law_rows(
    logits,
    processed,
    plain,
    best,
    state,
    sums,
    kept,
    ties,
    shares,
    law,
    entries,
    temperature,
    min_p,
    stride,
    vocabulary,
    addressable,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """``law`` f32[T, vocabulary]. Grid (T, blocks)."""
    lib.release_dependents(PDL)
    row, own, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    ids = own * BLOCK + tl.arange(0, BLOCK)
    lib.await_inputs(PDL)
    entry = tl.load(entries + row)
    heat, least = tl.load(temperature + entry), tl.load(min_p + entry)
    first = tl.max(row_codes(best, row, blocks, BLOCKS), 0)
    drawn = draws(first, heat)
    # A row that draws from no law has one of its largest token alone, at temperature 0.
    certain = (first < LAWLESS) & (heat <= 0) & (tl.abs(code_value(first)) < float("inf"))
    largest = tl.where(certain, code_id(first), -1)
    made = tl.where(ids == largest, 1.0, 0.0)
    if drawn:
        top = code_value(first)
        x = load_block(logits, processed, plain, row, ids, stride, vocabulary, addressable)
        ratio, mass = mass_of(x, top, heat)
        need = tl.load(state + row * STATE)
        if need != 0:
            last, held = last_kept(row, need, state, sums, top, heat)
            tie_ratio, tie_mass = mass_of(key_value(last), top, heat)
            tie_mass = tl.where(tie_ratio >= least, tie_mass, 0)
            block = tl.arange(0, BLOCKS)
            tied = tl.load(ties + row * blocks + block, block < blocks, other=0).to(tl.int64)
            left = tl.maximum(held - (tl.cumsum(tied, 0) - tied), 0)
            total = tl.sum(tl.minimum(tied, left), 0) * tie_mass
            total += row_sum(kept, row, blocks, BLOCKS)
            mine = tl.sum(tl.where(block == own, left, 0), 0)
            key = order_key(x)
            tie = key == last
            alive = (key > last) | (tie & (tl.cumsum(tie.to(tl.int32), 0) <= mine))
        else:
            last = tl.load(shares + row * SHARES)
            total = tl.load(shares + row * SHARES + 1)
            alive = code_of(x, ids) >= last
        mass = tl.where(alive & (ratio >= least) & (x > float("-inf")), mass, 0)
        whole = tl.maximum(total, 1).to(tl.float64)
        made = (mass.to(tl.float64) / whole).to(tl.float32)
    tl.store(law + row.to(tl.int64) * vocabulary + ids, made, ids < vocabulary)
