"""Cuts of rows whose last kept token is not among their candidates: long nuclei, a large k.

The key of the last kept token is settled from its highest digit down. A step adds up, over the
whole row, the weights of the tokens by their next digit: ones where top-k is settled, masses where
top-p is. Steps 0 to 2 serve top-k, 3 to 5 top-p, each only rows that need it. The sums are
integers, so adding them in any order gives the same.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels import lib
from ninfer_ops_triton.kernels.argmax import code_value, key_value, order_key
from ninfer_ops_triton.kernels.draw import (
    STATE,
    load_block,
    mass_of,
    row_codes,
    top_p_mass,
)
from ninfer_ops_triton.kernels.philox import number, share

DIGITS = tl.constexpr(2048)
STEPS = tl.constexpr(6)
SUMS = tl.constexpr(9 * 2048)
"""Sums i64 of a row: by digit for each step, then the masses by digit for steps 0 to 2."""


@triton.jit
def after(step, row, state, sums):
    """The key's digits up to and with this step's, the weight that is still wanted of the tokens
    which share them, and (for top-k) the mass of all tokens above."""
    slot = state + row * STATE + 4 + 3 * step
    prefix, wanted, above = tl.load(slot), tl.load(slot + 1), tl.load(slot + 2)
    digits = tl.arange(0, DIGITS)
    weights = tl.load(sums + row * SUMS + step * DIGITS + digits)
    reach = tl.sum(weights, 0) - tl.cumsum(weights, 0) + weights
    settled = tl.max(tl.where(reach >= wanted, digits, 0), 0)
    wanted -= tl.sum(tl.where(digits > settled, weights, 0), 0)
    if step < 3:
        masses = tl.load(sums + row * SUMS + (STEPS + step) * DIGITS + digits)
        above += tl.sum(tl.where(digits > settled, masses, 0), 0)
    bits = tl.where(step % 3 == 2, 10, 11)
    return (prefix << bits) + settled, wanted, above


@triton.jit
def last_kept(row, need, state, sums, top, heat):
    """Key of the last kept tokens, and how many of the tokens with that key are kept."""
    if (need & 2) != 0:
        key, wanted, _above = after(5, row, state, sums)
        _ratio, mass = mass_of(key_value(key), top, heat)
        each = tl.maximum(mass, 1)
        ties = (wanted + each - 1) // each
    else:
        key, ties, _above = after(2, row, state, sums)
    return key, ties


@triton.jit
def narrow_rows(
    logits,
    processed,
    plain,
    best,
    state,
    sums,
    entries,
    temperature,
    top_p,
    step,
    stride,
    vocabulary,
    addressable,
    blocks,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """One step. Grid (T, programs of a row)."""
    lib.release_dependents(PDL)
    row, program = tl.program_id(0), tl.program_id(1)
    lib.await_inputs(PDL)
    phase, turn = step // 3, step % 3
    need = tl.load(state + row * STATE)
    if ((need >> phase) & 1) != 0:
        entry = tl.load(entries + row)
        heat = tl.load(temperature + entry)
        top = code_value(tl.max(row_codes(best, row, blocks, BLOCKS), 0))
        prefix = need * 0
        wanted = tl.load(state + row * STATE + 1)
        above = need * 0
        if turn > 0:
            prefix, wanted, above = after(step - 1, row, state, sums)
        elif phase == 1:
            total = tl.load(state + row * STATE + 2)
            if (need & 1) != 0:
                key, ties, mass = after(2, row, state, sums)
                _, each = mass_of(key_value(key), top, heat)
                total = mass + ties * each
            wanted = top_p_mass(tl.load(top_p + entry), total)
        if program == 0:
            slot = state + row * STATE + 4 + 3 * step
            tl.store(slot, prefix)
            tl.store(slot + 1, wanted)
            tl.store(slot + 2, above)
        bits = tl.where(turn == 2, 10, 11)
        shift = tl.where(turn == 0, 21, tl.where(turn == 1, 10, 0))
        mine = sums + row * SUMS + step * DIGITS
        for block in range(program, blocks, tl.num_programs(1)):
            ids = block * BLOCK + tl.arange(0, BLOCK)
            x = load_block(logits, processed, plain, row, ids, stride, vocabulary, addressable)
            _, mass = mass_of(x, top, heat)
            key = order_key(x)
            under = (x > float("-inf")) & ((key >> (shift + bits)) == prefix)
            digit = ((key >> shift) & ((1 << bits) - 1)).to(tl.int32)
            mass = tl.where(under, mass, 0)
            weight = tl.where(phase == 0, under.to(tl.int64), mass)
            low = tl.min(tl.where(under, digit, DIGITS), 0)
            high = tl.max(tl.where(under, digit, -1), 0)
            # Equal digits in a whole block are common where logits are: one addition serves them.
            if low == high:
                tl.atomic_add(mine + low, tl.sum(weight, 0), sem="relaxed")
                if phase == 0:
                    tl.atomic_add(mine + STEPS * DIGITS + low, tl.sum(mass, 0), sem="relaxed")
            else:
                tl.atomic_add(mine + digit, weight, mask=weight > 0, sem="relaxed")
                if phase == 0:
                    tl.atomic_add(mine + STEPS * DIGITS + digit, mass, mask=mass > 0, sem="relaxed")


@triton.jit
def weigh_kept(
    logits,
    processed,
    plain,
    best,
    state,
    sums,
    kept,
    ties,
    entries,
    temperature,
    min_p,
    stride,
    vocabulary,
    addressable,
    blocks,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """``kept`` i64[T, blocks]: mass above the last key that min-p keeps; ``ties`` i32[T, blocks]:
    tokens with that key. Grid (T, programs of a row)."""
    lib.release_dependents(PDL)
    row, program = tl.program_id(0), tl.program_id(1)
    lib.await_inputs(PDL)
    need = tl.load(state + row * STATE)
    if need != 0:
        entry = tl.load(entries + row)
        heat, least = tl.load(temperature + entry), tl.load(min_p + entry)
        top = code_value(tl.max(row_codes(best, row, blocks, BLOCKS), 0))
        last, _ = last_kept(row, need, state, sums, top, heat)
        for block in range(program, blocks, tl.num_programs(1)):
            ids = block * BLOCK + tl.arange(0, BLOCK)
            x = load_block(logits, processed, plain, row, ids, stride, vocabulary, addressable)
            ratio, mass = mass_of(x, top, heat)
            key = order_key(x)
            mass = tl.where((key > last) & (ratio >= least), mass, 0)
            tl.store(kept + row * blocks + block, tl.sum(mass, 0))
            tl.store(ties + row * blocks + block, tl.sum((key == last).to(tl.int32), 0))


@triton.jit
def draw_kept(
    logits,
    processed,
    plain,
    best,
    state,
    sums,
    kept,
    ties,
    tokens,
    entries,
    temperature,
    min_p,
    seeds,
    positions,
    purpose,
    stride,
    vocabulary,
    addressable,
    blocks,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """tokens i32[T] of the rows that were narrowed. Grid (T,)."""
    lib.release_dependents(PDL)
    row = tl.program_id(0)
    lib.await_inputs(PDL)
    need = tl.load(state + row * STATE)
    if need != 0:
        entry = tl.load(entries + row)
        heat, least = tl.load(temperature + entry), tl.load(min_p + entry)
        top = code_value(tl.max(row_codes(best, row, blocks, BLOCKS), 0))
        last, held = last_kept(row, need, state, sums, top, heat)
        tie_ratio, tie_mass = mass_of(key_value(last), top, heat)
        tie_mass = tl.where(tie_ratio >= least, tie_mass, 0)
        block = tl.arange(0, BLOCKS)
        tied = tl.load(ties + row * blocks + block, block < blocks, other=0).to(tl.int64)
        left = tl.maximum(held - (tl.cumsum(tied, 0) - tied), 0)
        mass = tl.load(kept + row * blocks + block, block < blocks, other=0)
        mass += tl.minimum(tied, left) * tie_mass
        uniform = number(tl.load(seeds + entry), tl.load(positions + row), purpose)
        wanted = share(uniform, tl.sum(mass, 0))
        chosen = tl.sum((tl.cumsum(mass, 0) <= wanted).to(tl.int32), 0)
        wanted -= tl.sum(tl.where(block < chosen, mass, 0), 0)
        held = tl.sum(tl.where(block == chosen, left, 0), 0)

        ids = chosen * BLOCK + tl.arange(0, BLOCK)
        x = load_block(logits, processed, plain, row, ids, stride, vocabulary, addressable)
        ratio, mass = mass_of(x, top, heat)
        key = order_key(x)
        tie = key == last
        alive = (key > last) | (tie & (tl.cumsum(tie.to(tl.int32), 0) <= held))
        sums_here = tl.cumsum(tl.where(alive & (ratio >= least), mass, 0), 0)
        token = chosen * BLOCK + tl.sum((sums_here <= wanted).to(tl.int32), 0)
        tl.store(tokens + row, tl.minimum(token, vocabulary - 1))
