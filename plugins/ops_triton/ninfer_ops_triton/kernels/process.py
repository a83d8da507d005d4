"""Raw logits to processed logits, and what later kernels ask of each block of them."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels import lib
from ninfer_ops_triton.kernels.argmax import BROKEN, LAWLESS, code_of


@triton.jit
def process_rows(
    logits,
    processed,
    best,
    finite,
    plain,
    histogram,
    found,
    entries,
    lanes,
    positions,
    repetition,
    presence,
    frequency,
    bias_ids,
    bias,
    banned_ids,
    banned_before,
    generated,
    prompt,
    drafts,
    mask_words,
    mask_active,
    stride,
    vocabulary,
    addressable,
    biases,
    bans,
    width,
    BIASES: tl.constexpr,
    BANS: tl.constexpr,
    DRAFTS: tl.constexpr,
    MASKS: tl.constexpr,
    SUMMARY: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """``processed`` f32[T, vocabulary] by settings ``entries[t]`` and counts ``lanes[t]``.

    With SUMMARY only ids below ``addressable`` count; ``best`` i64[T, blocks] takes the largest
    code of each block (LAWLESS for NaN, BROKEN where the raw logits are not finite), ``finite``
    i32[T, blocks] how many processed logits are above -inf, ``histogram`` and ``found`` are
    cleared, and rows that ask for nothing are marked in ``plain`` i32[T] and not copied.

    Grid (T, blocks). BIASES and BANS are powers of two that hold the entries (0: none), ``width``
    is the number of columns of a sequence with DRAFTS.
    """
    lib.release_dependents(PDL)
    row, block = tl.program_id(0), tl.program_id(1)
    first = block * BLOCK
    ids = first + tl.arange(0, BLOCK)
    # The mask of loads and stores is the row's even width, so that they can be wide.
    inside = ids < vocabulary
    lib.await_inputs(PDL)
    raw = tl.load(logits + row.to(tl.int64) * stride + ids, inside, other=0.0)
    entry, lane = tl.load(entries + row), tl.load(lanes + row)
    x = raw

    factor = tl.load(repetition + entry)
    once, each = tl.load(presence + entry), tl.load(frequency + entry)
    asked = tl.where((factor != 1.0) | (once != 0.0) | (each != 0.0), 1, 0)
    if asked != 0:
        count = tl.load(generated + lane * vocabulary + ids, inside, other=0)
        if DRAFTS:
            before = drafts + (row // width) * (width - 1)
            for column in range(row % width):
                count += (ids == tl.load(before + column)).to(tl.int32)
        seen = (count > 0) | (tl.load(prompt + lane * vocabulary + ids, inside, other=0) != 0)
        x = tl.where(seen, tl.where(x > 0, tl.div_rn(x, factor), x * factor), x)
        x -= once * (count > 0).to(tl.float32) + each * count.to(tl.float32)
    if BIASES:
        names, values = bias_ids + entry * biases, bias + entry * biases
        x, listed = add_biases(x, first, names, values, biases, BIASES, BLOCK)
        asked = asked | listed
    if BANS:
        early = tl.load(positions + row) < tl.load(banned_before + entry)
        if early:
            x, listed = forbid(x, first, banned_ids + entry * bans, bans, BANS, BLOCK)
            asked = asked | listed
    if MASKS:
        bound = tl.load(mask_active + row)
        if bound:
            asked = 1
            words = mask_words + row * ((vocabulary + 31) // 32)
            word = tl.load(words + (ids >> 5), inside, other=0)
            x = tl.where(((word >> (ids & 31)) & 1) != 0, x, float("-inf"))

    if SUMMARY:
        code = tl.where(tl.abs(raw) < float("inf"), lawful_code(x, ids), BROKEN)
        code = tl.where(ids < addressable, code, -1)
        summarise(x, code, best, finite, histogram, found, row, block, BINS)
        if block == 0:
            tl.store(plain + row, 1 - asked)
    else:
        asked = asked | 1
    if asked != 0:
        tl.store(processed + row.to(tl.int64) * vocabulary + ids, x, inside)


@triton.jit
def add_biases(x, first, listed, values, count, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Add each listed bias, one after the other, to the tokens of this block that it names; also
    whether the list names any token."""
    ids = first + tl.arange(0, BLOCK)
    index = tl.arange(0, SIZE)
    names = tl.load(listed + index, index < count, other=-1)
    here = (names >= first) & (names < first + BLOCK)
    place = tl.min(tl.where(here, index, SIZE), 0)
    while place < SIZE:
        value = tl.load(values + place)
        x = tl.where(ids == tl.load(listed + place), x + value, x)
        place = tl.min(tl.where(here & (index > place), index, SIZE), 0)
    return x, tl.where(tl.max(names, 0) >= 0, 1, 0)


@triton.jit
def forbid(x, first, listed, count, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """-inf for listed tokens; also whether the list names any token."""
    ids = first + tl.arange(0, BLOCK)
    index = tl.arange(0, SIZE)
    names = tl.load(listed + index, index < count, other=-1)
    here = (names >= first) & (names < first + BLOCK)
    place = tl.min(tl.where(here, index, SIZE), 0)
    while place < SIZE:
        x = tl.where(ids == tl.load(listed + place), float("-inf"), x)
        place = tl.min(tl.where(here & (index > place), index, SIZE), 0)
    return x, tl.where(tl.max(names, 0) >= 0, 1, 0)


@triton.jit
def summarise_rows(
    processed,
    best,
    finite,
    plain,
    histogram,
    found,
    stride,
    vocabulary,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """The summary of :func:`process_rows` for logits that are processed already: plain rows."""
    lib.release_dependents(PDL)
    row, block = tl.program_id(0), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocabulary
    lib.await_inputs(PDL)
    x = tl.load(processed + row.to(tl.int64) * stride + ids, inside, other=float("-inf"))
    code = tl.where(inside, lawful_code(x, ids), -1)
    summarise(x, code, best, finite, histogram, found, row, block, BINS)
    if block == 0:
        tl.store(plain + row, 1)


@triton.jit
def lawful_code(x, ids):
    return tl.where(x != x, LAWLESS, code_of(x, ids))


@triton.jit
def summarise(x, code, best, finite, histogram, found, row, block, BINS: tl.constexpr):
    """``best`` and ``finite`` of a block (codes outside of the row are -1); the row's first block
    clears what later kernels add to."""
    place = row * tl.num_programs(1) + block
    tl.store(best + place, tl.max(code, 0))
    tl.store(finite + place, tl.sum(((code >= 0) & (x > float("-inf"))).to(tl.int32), 0))
    if block == 0:
        tl.store(histogram + row * BINS + tl.arange(0, BINS), tl.zeros([BINS], tl.int32))
        tl.store(found + row, 0)
