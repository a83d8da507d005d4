"""Sums of decode products over four-bit codes with a scale for each group of 64 columns.

Codes lie in blocks of 16 rows by 64 columns, in the order in which the threads of a warp multiply
them (:data:`ninfer_ops_triton.weights.Q4_TILED`): a thread's 16 bytes are its operands of four
tensor-core products. They go from memory to registers, and neither shared memory nor a barrier
stands between two steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.lib import await_inputs, wide
from ninfer_ops_triton.kernels.squares import read_squares
from ninfer_ops_triton.kernels.steps import (
    chain_dot,
    folded,
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

_NIBBLE_0, _NIBBLE_1, _NIBBLE_2, _NIBBLE_3 = (
    tl.constexpr(_SPREAD.format(shift=4 * place)) for place in range(4)
)
_OFFSET = tl.constexpr(136.0)
"""What a nibble's bf16 counts from."""


@triton.jit
def packed_products(
    x, codes, scales, squares, block_row, out_rows, n, T, quads, row_bytes, row_groups,
    stored_rows, parts, start, stop,
    FIRST: tl.constexpr, PARTS: tl.constexpr, GATED: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr, G: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr, EVEN_K: tl.constexpr, ALONE: tl.constexpr, PAIRS: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sums [BLOCK_R, N] of both halves over the columns from start to stop, BLOCK_K = 64 G of them
    a step; rows are in the order of :func:`pair_rows`. And the squares of a normed stream (FIRST).

    Rows of both halves (GATED) are one tile: two would take turns, and registers for each.

    x is bf16 of ``quads`` words of four columns a row. The first columns of all words are one
    product, the second another, so that nibbles need no shuffle. The scale of 64 columns multiplies
    their sum.
    """
    ROWS: tl.constexpr = BLOCK_R * 2 if GATED else BLOCK_R
    WHOLE: tl.constexpr = PAIRS or not GATED
    w = _code_places(codes, block_row, out_rows, row_bytes, stored_rows, GATED, WHOLE, BLOCK_R, G)
    s = _scale_places(scales, block_row, out_rows, stored_rows, GATED, BLOCK_R, G)
    n_read = tl.arange(0, 1) if ALONE else n
    words = x.to(tl.pointer_type(tl.uint64)) + n_read.to(tl.int64)[None, None, :] * quads
    there = (n_read < T)[None, None, :]
    # Not a constant, in name: registers hold it up to the end, rather than each product's own.
    less = (tl.zeros([G, 16, 16], tl.float32) + tl.where(T > 0, -_OFFSET, 0.0)).to(tl.bfloat16)

    if EARLY:
        # The first step's weights do not wait for the kernel before this one. They are used last,
        # so that the loop's loads follow them at once.
        first = _codes(w, start, row_groups, G, EVEN_K)
        first_s = _scales(s, start, row_groups, stored_rows, G, EVEN_K, WHOLE)
    await_inputs(PDL)
    sums = read_squares(squares, n, T, parts, PARTS, ALONE) if FIRST else n
    if EARLY:
        first_x = _fours(words, start, there, quads, G, EVEN_K, ALONE)
    acc = zeros(ROWS, N, G, True)
    for at in tl.range(start + EARLY * BLOCK_K, stop, BLOCK_K, num_stages=STAGES):
        weights = _codes(w, at, row_groups, G, EVEN_K)
        steps = _scales(s, at, row_groups, stored_rows, G, EVEN_K, WHOLE)
        fours = _fours(words, at, there, quads, G, EVEN_K, ALONE)
        acc = _packed_step(acc, weights, steps, fours, less, ROWS, N, G, INTERPRET)
    if EARLY:
        first_x = kept(first_x, INTERPRET)
        acc = _packed_step(acc, first, first_s, first_x, less, ROWS, N, G, INTERPRET)
    total = folded(acc, G, True)
    up = total
    if GATED:
        total, up = tl.split(tl.permute(tl.reshape(total, [2, BLOCK_R, N]), [1, 2, 0]))
    return total, up, sums


@triton.jit
def pair_rows(BLOCK_R: tl.constexpr):
    """Rows of a tile in the order of a product: a thread's sums of rows i and i + 8 of 16 are those
    of neighbours."""
    m = tl.arange(0, BLOCK_R)
    return m // 16 * 16 + m % 8 * 2 + m // 8 % 2


@triton.jit
def _block_rows(first_row, up_rows, GATED: tl.constexpr, BLOCK_R: tl.constexpr,
                SIZE: tl.constexpr):  # fmt: skip
    """Rows of the weight with which pieces of SIZE rows of a tile begin: BLOCK_R rows from
    ``first_row`` on, and with GATED as many that lie ``up_rows`` further on."""
    COUNT: tl.constexpr = BLOCK_R // SIZE
    piece = tl.arange(0, COUNT * 2 if GATED else COUNT)
    row = first_row + piece * SIZE
    if GATED:
        row += tl.where(piece >= COUNT, up_rows - BLOCK_R, 0)
    return row


@triton.jit
def _code_places(
    codes, first_row, up_rows, row_bytes, stored_rows, GATED: tl.constexpr, PAIRS: tl.constexpr,
    BLOCK_R: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Where a step's words u16 [G, rows / 16, 256] begin; eight are a thread of a warp. Rows past
    the last one are the last one again.

    Without PAIRS some first row is the second of its pair, and words of a thread lie apart."""
    word = tl.arange(0, 256)[None, None, :].to(tl.uint32)  # No sign: quotients are shifts.
    row = _block_rows(first_row, up_rows, GATED, BLOCK_R, 16)[None, :, None] + word // 32 * 2
    if PAIRS:
        # Blocks of 16 may begin inside stored ones: a pair is what stays whole.
        row = tl.minimum(row.to(tl.uint32), (stored_rows - 2).to(tl.uint32))
        place = row % 16 // 2 * 32 + word % 32
    else:
        row = tl.minimum(row + word // 2 % 2, stored_rows - 1)
        place = row % 16 // 2 * 32 + word % 32 // 4 * 4 + row % 2 * 2 + word % 2
    place += row // 16 * (long(row_bytes) * 8) + tl.arange(0, G)[:, None, None] * 256
    return codes.to(tl.pointer_type(tl.uint16)) + place


@triton.jit
def _codes(w, at, row_groups, G: tl.constexpr, EVEN_K: tl.constexpr):
    """Words of a step; groups past the last one are the last one again."""
    g = at // 64
    if not EVEN_K:
        g += tl.minimum(row_groups - 1 - g - tl.arange(0, G)[:, None, None], 0)
    return tl.load(w + g * 256, eviction_policy="evict_first")


@triton.jit
def _scale_places(
    scales, first_row, up_rows, stored_rows, GATED: tl.constexpr, BLOCK_R: tl.constexpr,
    G: tl.constexpr,
):  # fmt: skip
    """Where the scales of pairs of rows, fp16 [G, rows / 2], begin in a group."""
    pairs = _block_rows(first_row, up_rows, GATED, BLOCK_R, 2)
    pairs = tl.minimum(pairs, stored_rows - 2)[None, :]
    return scales + pairs + tl.zeros([G, 1], tl.int32)


@triton.jit
def _scales(
    s, at, row_groups, stored_rows, G: tl.constexpr, EVEN_K: tl.constexpr, PAIRS: tl.constexpr
):
    """fp16 scales of a step, in words u32 [G, rows / 2] of two neighbours: less than a word
    cannot be fetched ahead."""
    g = at // 64 + tl.arange(0, G)[:, None]
    if not EVEN_K:
        g = tl.minimum(g, row_groups - 1)
    place = s + g * stored_rows
    if PAIRS:
        words = tl.load(place.to(tl.pointer_type(tl.uint32)))
    else:
        place = place.to(tl.pointer_type(tl.uint16))
        words = tl.load(place).to(tl.uint32) | tl.load(place + 1).to(tl.uint32) << 16
    return words


@triton.jit
def _fours(words, at, there, quads, G: tl.constexpr, EVEN_K: tl.constexpr, ONE: tl.constexpr):
    """Words of four activations, u64 [G, 16, N], or [G, 16, 1] (ONE); rows and columns that are not
    there are 0."""
    column = at // 4 + tl.arange(0, G)[:, None, None] * 16 + tl.arange(0, 16)[None, :, None]
    if ONE and EVEN_K:
        tile = tl.load(words + column)
    else:
        tile = tl.load(words + column, mask=there if EVEN_K else there & (column < quads), other=0)
    return tile


@triton.jit
def _packed_step(
    acc, weights, steps, fours, less, ROWS: tl.constexpr, N: tl.constexpr, G: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    x_0 = side_by_side(fours.to(tl.uint16).to(tl.bfloat16, bitcast=True), N)
    x_1 = side_by_side((fours >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True), N)
    x_2 = side_by_side((fours >> 32).to(tl.uint16).to(tl.bfloat16, bitcast=True), N)
    x_3 = side_by_side((fours >> 48).to(tl.uint16).to(tl.bfloat16, bitcast=True), N)
    # Every row's sum begins with what its offsets add too much: exact factors, the same chain.
    offset = zeros(16, N, G, True)
    offset = _four_dots(less, less, less, less, x_0, x_1, x_2, x_3, offset, INTERPRET)
    offset = tl.broadcast_to(offset[:, None, :, :], [G, ROWS // 16, 16, N])
    sums = _four_dots(
        _nibbles(weights, 0, ROWS, G, INTERPRET), _nibbles(weights, 1, ROWS, G, INTERPRET),
        _nibbles(weights, 2, ROWS, G, INTERPRET), _nibbles(weights, 3, ROWS, G, INTERPRET),
        x_0, x_1, x_2, x_3, tl.reshape(offset, [G, ROWS, N]), INTERPRET,
    )  # fmt: skip
    scale = tl.broadcast_to(_row_scales(steps, ROWS, G, INTERPRET), sums.shape)
    return tl.fma(sums, scale, acc)


@triton.jit
def _four_dots(a_0, a_1, a_2, a_3, x_0, x_1, x_2, x_3, sums, INTERPRET: tl.constexpr):
    sums = chain_dot(a_0, x_0, sums, INTERPRET)
    sums = chain_dot(a_1, x_1, sums, INTERPRET)
    sums = chain_dot(a_2, x_2, sums, INTERPRET)
    return chain_dot(a_3, x_3, sums, INTERPRET)


@triton.jit
def _nibbles(
    words, PLACE: tl.constexpr, BLOCK_R: tl.constexpr, G: tl.constexpr, INTERPRET: tl.constexpr
):
    """Bits 4 PLACE to 4 PLACE + 3 of u16, two's complement, plus 136, in bf16 [G, BLOCK_R, 16]:
    with the sign bit flipped they are 0..15, which is what the last bits of a bf16 from 128 to 143
    count. A thread's numbers stay its own."""
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
    numbers = tl.reshape(numbers, [G, BLOCK_R // 16, 8, 4, 2, 2, 2])
    return tl.reshape(tl.permute(numbers, [0, 1, 5, 2, 4, 3, 6]), [G, BLOCK_R, 16])


@triton.jit
def _row_scales(words, BLOCK_R: tl.constexpr, G: tl.constexpr, INTERPRET: tl.constexpr):
    """fp32 [G, BLOCK_R, 1] in the order of :func:`pair_rows`."""
    low = words.to(tl.uint16).to(tl.float16, bitcast=True)
    high = (words >> 16).to(tl.uint16).to(tl.float16, bitcast=True)
    pairs = tl.reshape(tl.join(low, high), [G, BLOCK_R // 16, 8, 2])
    return wide(tl.reshape(tl.permute(pairs, [0, 1, 3, 2]), [G, BLOCK_R, 1]))
