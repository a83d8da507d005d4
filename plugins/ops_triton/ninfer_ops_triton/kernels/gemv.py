"""Matrix products of the decode route: few activation rows, each weight read once.

A program computes ``BLOCK_R`` rows of the product (and as many of the up half, ``GATED``) for ``N``
activation rows, over one of ``SPLIT`` parts of the columns. A step multiplies ``BLOCK_K`` columns
as ``G`` groups that are accumulated apart, so that warps can share the columns of a small tile.

The bits of an output do not depend on the other rows: an element is a chain of tensor-core products
over fixed groups of columns in a fixed order. ``N`` only says how many such chains run side by
side, and rows that are not there are zeros. Sums over groups and parts are trees written out.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.lib import await_inputs, narrow, release_dependents, wide

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


@triton.jit(do_not_specialize=["T"])
def product_kernel(
    x,  # bf16 [T, columns]
    codes,  # bf16 [rows, columns], fp8 [rows, columns] or u8 [rows, row_bytes]
    scales,  # bf16 [rows] (FP8), fp16 [rows, row_groups] (Q4)
    squares,  # f32 [T, parts], sums of which are those of the rows before x was scaled (NORM)
    residual,  # bf16 [T, out_rows] (EPILOGUE "add")
    next_scale,  # f32 [out_rows], of the norm that reads the sums (EPILOGUE "add")
    out,  # bf16 [T, out_rows], or f32 (EPILOGUE "head")
    scaled,  # bf16 [T, out_rows], the sums times next_scale (EPILOGUE "add")
    next_squares,  # f32 [T, blocks of rows] of the sums (EPILOGUE "add")
    partials,  # f32 scratch (SPLIT > 1)
    counters,  # i32 zeros, left as zeros (SPLIT > 1)
    T,
    out_rows,
    live_rows,  # rows that are read; logits of the others are -inf
    columns,
    row_columns,  # columns of a row of x: columns, or up to three more to make words (Q4)
    row_bytes,
    row_groups,
    parts,
    eps,
    FORMAT: tl.constexpr,
    NORM: tl.constexpr,
    PARTS: tl.constexpr,
    EPILOGUE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    G: tl.constexpr,
    N: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
    EVEN_K: tl.constexpr,
    ONE: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    release_dependents(PDL)
    GATED: tl.constexpr = EPILOGUE == "swiglu"
    # Programs that read the same weights for other activation rows run side by side.
    chunk = tl.program_id(0)
    block = tl.program_id(1)
    part = tl.program_id(2)
    r = block * BLOCK_R + tl.arange(0, BLOCK_R)
    n = chunk * N + tl.arange(0, N)
    # Rows past the end read the last row again: a clamp costs less than a mask.
    read = tl.minimum(r, live_rows - 1).to(tl.int64)

    steps = tl.cdiv(tl.cdiv(columns, BLOCK_K), SPLIT)
    start = part * steps * BLOCK_K
    stop = tl.minimum(columns, start + steps * BLOCK_K)
    if PDL:
        BYTES: tl.constexpr = codes.dtype.element_ty.primitive_bitwidth // 8
        STEP: tl.constexpr = BLOCK_K // 2 if FORMAT == "q4" else BLOCK_K * BYTES
        first = (start // BLOCK_K + EARLY) * STEP
        _ask_ahead(codes, read, row_bytes, first, STEP, AHEAD)
        if GATED:
            _ask_ahead(codes, read + out_rows, row_bytes, first, STEP, AHEAD)
    # Sums of squares of a long row take many registers: not beside weights that are decoded.
    FIRST: tl.constexpr = NORM and FORMAT == "bf16"
    if FORMAT == "q4":
        acc, up = _packed_products(
            x, codes, scales, read, out_rows, n, T, row_columns, row_bytes, row_groups,
            start, stop, GATED, BLOCK_R, BLOCK_K, G, N, STAGES, EARLY, EVEN_K, ONE, INTERPRET,
            PDL,
        )  # fmt: skip
        inverse = wide(n)
    else:
        acc, up, inverse = _plain_products(
            x, codes, squares, read, out_rows, n, T, columns, parts, eps,
            start, stop, FIRST, PARTS, GATED, BLOCK_R, BLOCK_K, G, N, STAGES, EARLY, EVEN_K,
            ONE, INTERPRET, PDL,
        )  # fmt: skip
    if SPLIT == 1:
        if NORM and not FIRST:
            inverse = _inverse_rms_in_parts(squares, n, T, parts, columns, eps, PARTS, N, INTERPRET)
        _finish(
            acc, up, inverse, scales, residual, next_scale, out, scaled, next_squares, read, block,
            r, n, T, out_rows, live_rows, FORMAT, NORM, EPILOGUE, BLOCK_R, N, INTERPRET,
        )  # fmt: skip
    else:
        TILE: tl.constexpr = BLOCK_R * N
        place = block * tl.num_programs(0) + chunk
        tile = tl.arange(0, BLOCK_R)[:, None] * N + tl.arange(0, N)[None, :]
        area = partials + place.to(tl.int64) * (SPLIT * 2 * TILE)
        mine = area + part * (2 * TILE)
        tl.store(mine + tile, acc)
        if GATED:
            tl.store(mine + TILE + tile, up)
        # All threads have stored before one of them says so.
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + place, 1, sem="acq_rel", scope="gpu")
        if arrived == SPLIT - 1:
            acc = tl.zeros([BLOCK_R, N], tl.float32)
            up = acc
            for other in tl.static_range(SPLIT):
                their = area + other * (2 * TILE) + tile
                acc += tl.load(their, cache_modifier=".cg")
                if GATED:
                    up += tl.load(their + TILE, cache_modifier=".cg")
            tl.store(counters + place, 0)
            if NORM and not FIRST:
                inverse = _inverse_rms_in_parts(
                    squares, n, T, parts, columns, eps, PARTS, N, INTERPRET
                )
            _finish(
                acc, up, inverse, scales, residual, next_scale, out, scaled, next_squares, read,
                block, r, n, T, out_rows, live_rows, FORMAT, NORM, EPILOGUE, BLOCK_R, N, INTERPRET,
            )  # fmt: skip


@triton.jit
def _long(number):
    """As i64; an argument that is 1 is a constant and has no type of its own."""
    return tl.zeros([], tl.int64) + number


@triton.jit
def _ask_ahead(codes, rows, row_bytes, first, STEP: tl.constexpr, AHEAD: tl.constexpr):
    """Ask for ``AHEAD`` times ``STEP`` bytes of each row, from byte ``first`` on: they come into
    the L2 cache while this kernel waits for the one before it."""
    if AHEAD > 0:
        LINES: tl.constexpr = (AHEAD * STEP + 127) // 128
        at = tl.minimum(first + tl.arange(0, LINES) * 128, row_bytes - 1)
        places = codes.to(tl.int64) + rows[:, None] * row_bytes + at[None, :]
        tl.inline_asm_elementwise(
            "{ prefetch.global.L2 [$1]; mov.b32 $0, 0; }",
            "=r,l",
            [places],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def _plain_products(
    x, codes, squares, read, out_rows, n, T, columns, parts, eps, start, stop,
    NORM: tl.constexpr, PARTS: tl.constexpr, GATED: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr, G: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr, EVEN_K: tl.constexpr, ONE: tl.constexpr, INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Sums [BLOCK_R, N] of both halves over the columns from start to stop, of bf16 or fp8 weights,
    and the inverse root mean squares [N] of a normed stream."""
    W: tl.constexpr = BLOCK_K // G
    k = _group_columns(G, W)
    w = codes + _as_rows(read * columns, G)
    w_up = w + _long(out_rows) * columns
    # One row is read alone, and multiplied in all N places.
    n_read = tl.arange(0, 1) if ONE else n
    x_rows = x + _as_columns(n_read.to(tl.int64) * columns, G)
    present = _as_columns(n_read < T, G)

    if EARLY:
        # The first step's weights do not wait for the kernel before this one. They are used last,
        # so that the loop's loads follow them at once.
        first = _weights(w, start + k, columns, G, EVEN_K)
        if GATED:
            first_up = _weights(w_up, start + k, columns, G, EVEN_K)
    await_inputs(PDL)
    if EARLY:
        first_x = _activations(x_rows, start + k, present, columns, G, EVEN_K, ONE)
    inverse = _inverse_rms(squares, n, T, parts, columns, eps, NORM, PARTS, N, INTERPRET)
    acc = _zeros(BLOCK_R, N, G)
    up = _zeros(BLOCK_R, N, G)
    for at in tl.range(start + EARLY * BLOCK_K, stop, BLOCK_K, num_stages=STAGES):
        weights = _weights(w, at + k, columns, G, EVEN_K)
        weights_up = weights
        if GATED:
            weights_up = _weights(w_up, at + k, columns, G, EVEN_K)
        values = _activations(x_rows, at + k, present, columns, G, EVEN_K, ONE)
        acc, up = _plain_step(acc, up, weights, weights_up, values, GATED, INTERPRET)
    if EARLY:
        first = _kept(first, INTERPRET)
        first_up = _kept(first_up, INTERPRET) if GATED else first
        first_x = _kept(first_x, INTERPRET)
        acc, up = _plain_step(acc, up, first, first_up, first_x, GATED, INTERPRET)
    return _folded(acc, G), _folded(up, G), inverse


@triton.jit
def _activations(
    x_rows, k, present, columns, G: tl.constexpr, EVEN_K: tl.constexpr, ONE: tl.constexpr
):
    """A tile [W, N] or [G, W, N], or [W, 1] or [G, W, 1] (ONE); rows and columns that are not there
    are 0."""
    down = _down(k, G)
    if ONE and EVEN_K:
        tile = tl.load(x_rows + down)
    else:
        there = present if EVEN_K else present & (down < columns)
        tile = tl.load(x_rows + down, mask=there, other=0)
    return tile


@triton.jit
def _side_by_side(x, N: tl.constexpr):
    """[W, 1] or [G, W, 1] to N equal columns; N columns as they are."""
    if x.shape[-1] != N:
        if len(x.shape) == 2:
            x = tl.broadcast_to(x, [x.shape[0], N])
        else:
            x = tl.broadcast_to(x, [x.shape[0], x.shape[1], N])
    return x


@triton.jit
def _plain_step(acc, up, weights, weights_up, values, GATED: tl.constexpr, INTERPRET: tl.constexpr):
    values = _side_by_side(values, acc.shape[-1])
    acc = _dot(_widened(weights), values, acc, INTERPRET)
    if GATED:
        up = _dot(_widened(weights_up), values, up, INTERPRET)
    return acc, up


@triton.jit
def _inverse_rms(
    squares, n, T, parts, columns, eps, NORM: tl.constexpr, PARTS: tl.constexpr, N: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """``rsqrt(sum(parts) / columns + eps)`` [N] of each row (NORM; else of no use). The sum is a
    product with ones, whose order does not depend on N, over the upper 16 bits of each part in two
    bf16."""
    inverse = wide(n)
    if NORM:
        p = tl.arange(0, PARTS)
        there = (p < parts)[:, None] & (n < T)[None, :]
        place = n.to(tl.int64)[None, :] * parts + p[:, None]
        sums = tl.load(squares + place, mask=there, other=0.0)
        ones = tl.full([16, PARTS], 1.0, tl.float32).to(tl.bfloat16)
        total = _sum_halves(ones, sums, tl.zeros([16, N], tl.float32), INTERPRET)
        inverse = tl.rsqrt(tl.max(total, axis=0) / columns + eps)
    return inverse


@triton.jit
def _inverse_rms_in_parts(
    squares, n, T, parts, columns, eps, PARTS: tl.constexpr, N: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """As :func:`_inverse_rms` of a normed stream, in up to eight sums that warps share."""
    G: tl.constexpr = 8 if PARTS >= 128 else PARTS // 16
    p = _group_columns(G, PARTS // G)
    there = _down(p < parts, G) & _as_columns(n < T, G)
    place = _as_columns(n.to(tl.int64) * parts, G) + _down(p, G)
    sums = tl.load(squares + place, mask=there, other=0.0)
    SHAPE: tl.constexpr = [16, PARTS] if G == 1 else [G, 16, PARTS // G]
    ones = tl.full(SHAPE, 1.0, tl.float32).to(tl.bfloat16)
    total = _folded(_sum_halves(ones, sums, _zeros(16, N, G), INTERPRET), G)
    return tl.rsqrt(tl.max(total, axis=0) / columns + eps)


@triton.jit
def _sum_halves(ones, values, acc, INTERPRET: tl.constexpr):
    """``acc + ones @ values`` of fp32 values, in two bf16 each. That is exact for the square of a
    bf16, and to 2^-17 for others."""
    high = (values.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    low = narrow(values - wide(high), tl.bfloat16, INTERPRET)
    return _dot(ones, low, _dot(ones, high, acc, INTERPRET), INTERPRET)


@triton.jit
def _packed_products(
    x, codes, scales, read, out_rows, n, T, columns, row_bytes, row_groups, start, stop,
    GATED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, G: tl.constexpr,
    N: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr, EVEN_K: tl.constexpr,
    ONE: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sums as of :func:`_plain_products` of four-bit codes, BLOCK_K being 64 G. Codes are read
    as 16-bit words of four, and x as words of four bf16, ``columns`` being a multiple of four: the
    first columns of all words are one product, the second another, so that nibbles need no shuffle.
    The scale of 64 columns multiplies their sum."""
    quads = columns // 4
    row_words = row_bytes // 2
    j = _group_columns(G, 16)
    w = codes.to(tl.pointer_type(tl.uint16)) + _as_rows(read * row_words, G)
    WORDS: tl.constexpr = G > 1 and EVEN_K
    if WORDS:
        WORD: tl.constexpr = tl.uint32 if G == 2 else tl.uint64
        s = scales.to(tl.pointer_type(WORD)) + _as_rows(read * (row_groups // G), G)
        s_up = s + _long(out_rows) * (row_groups // G)
    else:
        s = scales + _as_rows(read * row_groups, G)
        s_up = s + _long(out_rows) * row_groups
    w_up = w + _long(out_rows) * row_words
    n_read = tl.arange(0, 1) if ONE else n
    words = x.to(tl.pointer_type(tl.uint64)) + _as_columns(n_read.to(tl.int64) * quads, G)
    present = _as_columns(n_read < T, G)

    if EARLY:
        first = _packed_weights(w, start // 4 + j, row_words, G, EVEN_K)
        first_s = _group_scales(s, start, row_groups, G, WORDS)
        if GATED:
            first_up = _packed_weights(w_up, start // 4 + j, row_words, G, EVEN_K)
            first_s_up = _group_scales(s_up, start, row_groups, G, WORDS)
        else:
            first_s_up = first_s
    await_inputs(PDL)
    if EARLY:
        first_x = _activations(words, start // 4 + j, present, quads, G, EVEN_K, ONE)
    acc = _zeros(BLOCK_R, N, G)
    up = _zeros(BLOCK_R, N, G)
    for at in tl.range(start + EARLY * BLOCK_K, stop, BLOCK_K, num_stages=STAGES):
        weights = _packed_weights(w, at // 4 + j, row_words, G, EVEN_K)
        step = _group_scales(s, at, row_groups, G, WORDS)
        weights_up = weights
        step_up = step
        if GATED:
            weights_up = _packed_weights(w_up, at // 4 + j, row_words, G, EVEN_K)
            step_up = _group_scales(s_up, at, row_groups, G, WORDS)
        fours = _activations(words, at // 4 + j, present, quads, G, EVEN_K, ONE)
        acc, up = _packed_step(
            acc, up, weights, step, weights_up, step_up, fours, BLOCK_R, N, GATED, G, WORDS,
            INTERPRET,
        )  # fmt: skip
    if EARLY:
        first = _kept(first, INTERPRET)
        first_up = _kept(first_up, INTERPRET) if GATED else first
        acc, up = _packed_step(
            acc, up, first, first_s, first_up, first_s_up, _kept(first_x, INTERPRET),
            BLOCK_R, N, GATED, G, WORDS, INTERPRET,
        )  # fmt: skip
    return _folded(acc, G), _folded(up, G)


@triton.jit
def _packed_step(
    acc, up, weights, step, weights_up, step_up, fours,
    BLOCK_R: tl.constexpr, N: tl.constexpr, GATED: tl.constexpr, G: tl.constexpr,
    WORDS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    x_0 = _side_by_side(fours.to(tl.uint16).to(tl.bfloat16, bitcast=True), N)
    x_1 = _side_by_side((fours >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True), N)
    x_2 = _side_by_side((fours >> 32).to(tl.uint16).to(tl.bfloat16, bitcast=True), N)
    x_3 = _side_by_side((fours >> 48).to(tl.uint16).to(tl.bfloat16, bitcast=True), N)
    # Every row's sum begins with what its offsets add too much: exact factors, the same chain.
    less = tl.full(weights.shape, -_OFFSET, tl.float32).to(tl.bfloat16)
    offset = _four_dots(
        less, less, less, less, x_0, x_1, x_2, x_3, _zeros(BLOCK_R, N, G), INTERPRET
    )
    sums = _nibble_dots(weights, x_0, x_1, x_2, x_3, offset, INTERPRET)
    acc = tl.fma(sums, tl.broadcast_to(_spread_scales(step, G, WORDS), sums.shape), acc)
    if GATED:
        sums = _nibble_dots(weights_up, x_0, x_1, x_2, x_3, offset, INTERPRET)
        up = tl.fma(sums, tl.broadcast_to(_spread_scales(step_up, G, WORDS), sums.shape), up)
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
    sums = _dot(a_0, x_0, sums, INTERPRET)
    sums = _dot(a_1, x_1, sums, INTERPRET)
    sums = _dot(a_2, x_2, sums, INTERPRET)
    return _dot(a_3, x_3, sums, INTERPRET)


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
def _dot(a, b, acc, INTERPRET: tl.constexpr):
    """``acc + a @ b``. The interpreter's product chooses its order by the shape; in fp64 that does
    not show."""
    if INTERPRET:
        acc += tl.dot(a.to(tl.float64), b.to(tl.float64), out_dtype=tl.float64).to(tl.float32)
    else:
        acc = tl.dot(a, b, acc)
    return acc


@triton.jit
def _finish(
    acc, up, inverse, scales, residual, next_scale, out, scaled, next_squares, read, block, r, n, T,
    out_rows, live_rows,
    FORMAT: tl.constexpr, NORM: tl.constexpr, EPILOGUE: tl.constexpr, BLOCK_R: tl.constexpr,
    N: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Scales, activation and store of finished sums [BLOCK_R, N]."""
    if FORMAT == "fp8":
        acc *= wide(tl.load(scales + read))[:, None]
        if EPILOGUE == "swiglu":
            up *= wide(tl.load(scales + read + out_rows))[:, None]
    if NORM:
        acc *= inverse[None, :]
        up *= inverse[None, :]
    place = n.to(tl.int64)[None, :] * out_rows + r[:, None]
    wanted = (n < T)[None, :] & (r < out_rows)[:, None]
    if EPILOGUE == "head":
        tl.store(out + place, tl.where((r < live_rows)[:, None], acc, float("-inf")), mask=wanted)
    else:
        if EPILOGUE == "swiglu":
            acc = acc / (1.0 + tl.exp(-acc)) * up
        if EPILOGUE == "add":
            acc += wide(tl.load(residual + place, mask=wanted, other=0.0))
        rounded = narrow(acc, tl.bfloat16, INTERPRET)
        tl.store(out + place, rounded, mask=wanted)
        if EPILOGUE == "add":
            sums = tl.where(wanted, wide(rounded), 0.0)
            scale = tl.load(next_scale + r, mask=r < out_rows, other=0.0)[:, None]
            tl.store(scaled + place, narrow(sums * scale, tl.bfloat16, INTERPRET), mask=wanted)
            ones = tl.full([16, BLOCK_R], 1.0, tl.float32).to(tl.bfloat16)
            total = _sum_halves(ones, sums * sums, tl.zeros([16, N], tl.float32), INTERPRET)
            blocks = tl.num_programs(1)
            tl.store(
                next_squares + n.to(tl.int64) * blocks + block, tl.max(total, axis=0), mask=n < T
            )


@triton.jit
def _weights(w, k, columns, G: tl.constexpr, EVEN_K: tl.constexpr):
    """A tile [BLOCK_R, W] or [G, BLOCK_R, W]; columns that are not there are 0."""
    across = _across(k, G)
    if EVEN_K:
        tile = tl.load(w + across, eviction_policy="evict_first")
    else:
        tile = tl.load(w + across, mask=across < columns, other=0.0, eviction_policy="evict_first")
    return tile


@triton.jit
def _kept(tile, INTERPRET: tl.constexpr):
    """The tile itself, in registers up to here: the compiler would store what a product takes to
    shared memory as soon as it is loaded, and so wait for it there."""
    if not INTERPRET:
        kind: tl.constexpr = tile.dtype
        if kind.primitive_bitwidth == 64:
            raw = tl.inline_asm_elementwise(
                "mov.b64 $0, $1;", "=l,l", [tile], dtype=tl.uint64, is_pure=False, pack=1
            )
        elif kind.primitive_bitwidth == 32:
            raw = tl.inline_asm_elementwise(
                "mov.b32 $0, $1;", "=r,r", [tile], dtype=tl.uint32, is_pure=False, pack=1
            )
        elif kind.primitive_bitwidth == 16:
            raw = tile.to(tl.int16, bitcast=True)
            raw = tl.inline_asm_elementwise(
                "mov.b32 $0, $1;", "=r,r", [raw], dtype=tl.int16, is_pure=False, pack=2
            )
        else:
            raw = tile.to(tl.int8, bitcast=True)
            raw = tl.inline_asm_elementwise(
                "mov.b32 $0, $1;", "=r,r", [raw], dtype=tl.int8, is_pure=False, pack=4
            )
        tile = raw.to(kind, bitcast=True)
    return tile


@triton.jit
def _packed_weights(w, j, row_words, G: tl.constexpr, EVEN_K: tl.constexpr):
    """A tile [BLOCK_R, 16] or [G, BLOCK_R, 16] of 16-bit words."""
    across = _across(j, G)
    if EVEN_K:
        tile = tl.load(w + across, eviction_policy="evict_first")
    else:
        tile = tl.load(w + across, mask=across < row_words, other=0, eviction_policy="evict_first")
    return tile


@triton.jit
def _group_scales(s, at, row_groups, G: tl.constexpr, WORDS: tl.constexpr):
    """fp16 scales of a step: one word of G scales for each row ([BLOCK_R, 1] or [1, BLOCK_R, 1]),
    which is wide enough to be fetched ahead, or one for each group."""
    if WORDS:
        scales = tl.load(s + at // (64 * G))
    else:
        g = at // 64 + tl.arange(0, G)
        g = g[None, :] if G == 1 else g[:, None, None]
        scales = tl.load(s + g, mask=g < row_groups, other=0.0)
    return scales


@triton.jit
def _spread_scales(scales, G: tl.constexpr, WORDS: tl.constexpr):
    """In fp32, [BLOCK_R, 1] or [G, BLOCK_R, 1]."""
    if WORDS:
        shift = 16 * tl.arange(0, G)[:, None, None]
        scales = (scales >> shift.to(scales.dtype)).to(tl.uint16).to(tl.float16, bitcast=True)
    return wide(scales)


@triton.jit
def _widened(weights):
    return weights if weights.dtype == tl.bfloat16 else wide(weights).to(tl.bfloat16)


@triton.jit
def _zeros(ROWS: tl.constexpr, N: tl.constexpr, G: tl.constexpr):
    return tl.zeros([ROWS, N] if G == 1 else [G, ROWS, N], tl.float32)


@triton.jit
def _folded(sums, G: tl.constexpr):
    """[G, A, B] to [A, B]: halves are added until one is left, so that the order is this one in
    any layout."""
    if G > 1:
        ROWS: tl.constexpr = sums.shape[1]
        N: tl.constexpr = sums.shape[2]
        if G == 8:
            sums = tl.sum(tl.reshape(sums, [2, 4, ROWS, N]), axis=0)
        if G >= 4:
            sums = tl.sum(tl.reshape(sums, [2, 2, ROWS, N]), axis=0)
        sums = tl.sum(sums, axis=0)
    return sums


@triton.jit
def _group_columns(G: tl.constexpr, W: tl.constexpr):
    """Columns of a step: [W], or [G, W]."""
    columns = tl.arange(0, W)
    if G > 1:
        columns = tl.arange(0, G)[:, None] * W + columns[None, :]
    return columns


@triton.jit
def _across(k, G: tl.constexpr):
    """Columns along the last axis of a weight tile."""
    return k[None, :] if G == 1 else k[:, None, :]


@triton.jit
def _down(k, G: tl.constexpr):
    """Columns along the first axis, or the second of three, of an activation tile."""
    return k[:, None] if G == 1 else k[:, :, None]


@triton.jit
def _as_rows(values, G: tl.constexpr):
    return values[:, None] if G == 1 else values[None, :, None]


@triton.jit
def _as_columns(values, G: tl.constexpr):
    return values[None, :] if G == 1 else values[None, None, :]
