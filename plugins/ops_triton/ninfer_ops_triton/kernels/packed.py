"""Sums of decode products over four-bit codes with a scale for each group of 64 columns."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.lib import await_inputs, wide
from ninfer_ops_triton.kernels.steps import (
    across_rows,
    activations,
    as_columns,
    as_rows,
    chain_dot,
    folded,
    group_columns,
    kept,
    long,
    side_by_side,
    zeros,
)

_SPREAD = """{{
    .reg .b32 word;
    shr.u32 word, $1, {shift};
    lop3.b32 $0, word, 0x000F000F, 0x43084308, 0x6A;
}}"""
"""One nibble of each of two 16-bit words to two bf16: mask and flip (a & b ^ c)."""

_NIBBLES = tuple(tl.constexpr(_SPREAD.format(shift=4 * place)) for place in range(4))
_NIBBLE_0, _NIBBLE_1, _NIBBLE_2, _NIBBLE_3 = _NIBBLES
_OFFSET = tl.constexpr(136.0)
"""What a nibble's bf16 counts from."""


@triton.jit
def packed_products(
    x, codes, scales, block_row, read, out_rows, n, T, columns, row_bytes, row_groups, start, stop,
    GATED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, G: tl.constexpr,
    N: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr, EVEN_K: tl.constexpr,
    ONE: tl.constexpr, PAIRS: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sums [BLOCK_R, N] of both halves over the columns from start to stop, BLOCK_K = 64 G of them
    a step; rows are in the order of :func:`pair_rows`.

    Codes are read as 16-bit words of four, and x as words of four bf16, ``columns`` being a
    multiple of four: the first columns of all words are one product, the second another, so that
    nibbles need no shuffle. The scale of 64 columns multiplies their sum.
    """
    quads = columns // 4
    row_words = row_bytes // 2
    j = group_columns(G, 16)
    w = codes.to(tl.pointer_type(tl.uint16)) + as_rows(read * row_words, G)
    w_up = w + long(out_rows) * row_words
    s = scales
    s_up = scales + out_rows
    stride = long(out_rows) * (2 if GATED else 1)
    pairs = block_row + 2 * tl.arange(0, BLOCK_R // 2)
    if G > 1:
        pairs = pairs[None, :]
    n_read = tl.arange(0, 1) if ONE else n
    words = x.to(tl.pointer_type(tl.uint64)) + as_columns(n_read.to(tl.int64) * quads, G)
    present = as_columns(n_read < T, G)

    if EARLY:
        first = _packed_weights(w, start // 4 + j, row_words, G, EVEN_K)
        first_s = _group_scales(s, start, pairs, out_rows, stride, row_groups, G, EVEN_K, PAIRS)
        first_s_up = first_s
        if GATED:
            first_up = _packed_weights(w_up, start // 4 + j, row_words, G, EVEN_K)
            first_s_up = _group_scales(
                s_up, start, pairs, out_rows, stride, row_groups, G, EVEN_K, PAIRS
            )
    await_inputs(PDL)
    if EARLY:
        first_x = activations(words, start // 4 + j, present, quads, G, EVEN_K, ONE)
    acc = zeros(BLOCK_R, N, G)
    up = zeros(BLOCK_R, N, G)
    for at in tl.range(start + EARLY * BLOCK_K, stop, BLOCK_K, num_stages=STAGES):
        weights = _packed_weights(w, at // 4 + j, row_words, G, EVEN_K)
        step = _group_scales(s, at, pairs, out_rows, stride, row_groups, G, EVEN_K, PAIRS)
        weights_up = weights
        step_up = step
        if GATED:
            weights_up = _packed_weights(w_up, at // 4 + j, row_words, G, EVEN_K)
            step_up = _group_scales(s_up, at, pairs, out_rows, stride, row_groups, G, EVEN_K, PAIRS)
        fours = activations(words, at // 4 + j, present, quads, G, EVEN_K, ONE)
        acc, up = _packed_step(
            acc, up, weights, step, weights_up, step_up, fours, BLOCK_R, N, GATED, G, INTERPRET
        )
    if EARLY:
        first = kept(first, INTERPRET)
        first_up = kept(first_up, INTERPRET) if GATED else first
        acc, up = _packed_step(
            acc, up, first, first_s, first_up, first_s_up, kept(first_x, INTERPRET),
            BLOCK_R, N, GATED, G, INTERPRET,
        )  # fmt: skip
    return folded(acc, G), folded(up, G)


@triton.jit
def _packed_step(
    acc, up, weights, step, weights_up, step_up, fours,
    BLOCK_R: tl.constexpr, N: tl.constexpr, GATED: tl.constexpr, G: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    x_0 = side_by_side(fours.to(tl.uint16).to(tl.bfloat16, bitcast=True), N)
    x_1 = side_by_side((fours >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True), N)
    x_2 = side_by_side((fours >> 32).to(tl.uint16).to(tl.bfloat16, bitcast=True), N)
    x_3 = side_by_side((fours >> 48).to(tl.uint16).to(tl.bfloat16, bitcast=True), N)
    # Every row's sum begins with what its offsets add too much: exact factors, the same chain.
    less = tl.full(weights.shape, -_OFFSET, tl.float32).to(tl.bfloat16)
    offset = _four_dots(less, less, less, less, x_0, x_1, x_2, x_3, zeros(BLOCK_R, N, G), INTERPRET)
    sums = _nibble_dots(weights, x_0, x_1, x_2, x_3, offset, INTERPRET)
    acc = tl.fma(sums, tl.broadcast_to(_row_scales(step, BLOCK_R, G), sums.shape), acc)
    if GATED:
        sums = _nibble_dots(weights_up, x_0, x_1, x_2, x_3, offset, INTERPRET)
        up = tl.fma(sums, tl.broadcast_to(_row_scales(step_up, BLOCK_R, G), sums.shape), up)
    return acc, up


@triton.jit
def _nibble_dots(words, x_0, x_1, x_2, x_3, sums, INTERPRET: tl.constexpr):
    return _four_dots(
        _nibbles(words, 0, INTERPRET), _nibbles(words, 1, INTERPRET),
        _nibbles(words, 2, INTERPRET), _nibbles(words, 3, INTERPRET),
        x_0, x_1, x_2, x_3, sums, INTERPRET,
    )  # fmt: skip


@triton.jit
def _four_dots(a_0, a_1, a_2, a_3, x_0, x_1, x_2, x_3, sums, INTERPRET: tl.constexpr):
    sums = chain_dot(a_0, x_0, sums, INTERPRET)
    sums = chain_dot(a_1, x_1, sums, INTERPRET)
    sums = chain_dot(a_2, x_2, sums, INTERPRET)
    return chain_dot(a_3, x_3, sums, INTERPRET)


@triton.jit
def _nibbles(words, PLACE: tl.constexpr, INTERPRET: tl.constexpr):
    """Bits 4 PLACE to 4 PLACE + 3 of u16, two's complement, plus 136, in bf16: with the sign bit
    flipped they are 0..15, which is what the last bits of a bf16 from 128 to 143 count."""
    if INTERPRET:
        bits = ((words >> (4 * PLACE)) & 15) ^ 0x4308
        numbers = bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        if PLACE == 0:
            CODE: tl.constexpr = _NIBBLE_0
        elif PLACE == 1:
            CODE: tl.constexpr = _NIBBLE_1
        elif PLACE == 2:
            CODE: tl.constexpr = _NIBBLE_2
        else:
            CODE: tl.constexpr = _NIBBLE_3
        numbers = tl.inline_asm_elementwise(
            CODE, "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    return numbers


@triton.jit
def _packed_weights(w, j, row_words, G: tl.constexpr, EVEN_K: tl.constexpr):
    """A tile [BLOCK_R, 16] or [G, BLOCK_R, 16] of 16-bit words."""
    across = across_rows(j, G)
    if EVEN_K:
        tile = tl.load(w + across, eviction_policy="evict_first")
    else:
        tile = tl.load(w + across, mask=across < row_words, other=0, eviction_policy="evict_first")
    return tile


@triton.jit
def pair_rows(BLOCK_R: tl.constexpr):
    """Rows of a tile in the order of a product: a thread's sums of rows i and i + 8 of 16 are those
    of neighbours, whose scales are one word."""
    m = tl.arange(0, BLOCK_R)
    return m // 16 * 16 + m % 8 * 2 + m // 8 % 2


@triton.jit
def _group_scales(
    scales, at, pairs, out_rows, stride, row_groups, G: tl.constexpr, EVEN_K: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """fp16 scales of a step, in words u32 [BLOCK_R / 2] or [G, BLOCK_R / 2]: of two neighbours, as
    less than a word cannot be fetched ahead. ``pairs`` are the first rows of the words."""
    g = at // 64 + (0 if G == 1 else tl.arange(0, G)[:, None])
    place = scales + (g * stride + pairs)
    there = pairs < out_rows
    after = pairs + 1 < out_rows
    if not EVEN_K:
        # A tensor in every case: the interpreter takes no plain truth value into a mask.
        inside = tl.full([G, 1] if G > 1 else [1], 0, tl.int32) + g < row_groups
        there = there & inside
        after = after & inside
    if PAIRS:
        words = tl.load(place.to(tl.pointer_type(tl.uint32)), mask=there, other=0)
    else:
        place = place.to(tl.pointer_type(tl.uint16))
        low = tl.load(place, mask=there, other=0).to(tl.uint32)
        words = low | tl.load(place + 1, mask=after, other=0).to(tl.uint32) << 16
    return words


@triton.jit
def _row_scales(words, BLOCK_R: tl.constexpr, G: tl.constexpr):
    """In fp32, [BLOCK_R, 1] or [G, BLOCK_R, 1] in the order of :func:`_pair_rows`."""
    low = words.to(tl.uint16).to(tl.float16, bitcast=True)
    high = (words >> 16).to(tl.uint16).to(tl.float16, bitcast=True)
    pairs = tl.reshape(tl.join(low, high), [G, BLOCK_R // 16, 8, 2])
    ordered = tl.permute(pairs, [0, 1, 3, 2])
    return wide(tl.reshape(ordered, [BLOCK_R, 1] if G == 1 else [G, BLOCK_R, 1]))
