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
    .reg .b32 bytes, pair, flip, one, offset;
    mov.b32 flip, 0x43084308;
    mov.b32 one, 0x3F803F80;
    mov.b32 offset, 0xC308C308;
    shr.u32 bytes, $2, {shift};
    prmt.b32 pair, bytes, 0, 0x4140;
    lop3.b32 pair, pair, 0x000F000F, flip, 0x6A;
    fma.rn.bf16x2 $0, pair, one, offset;
    prmt.b32 pair, bytes, 0, 0x4342;
    lop3.b32 pair, pair, 0x000F000F, flip, 0x6A;
    fma.rn.bf16x2 $1, pair, one, offset;
}}"""
"""Four bytes to four bf16: spread two by two, mask and flip (a & b ^ c), subtract 136."""

_LOW_NIBBLES = tl.constexpr(_SPREAD.format(shift=0))
_HIGH_NIBBLES = tl.constexpr(_SPREAD.format(shift=4))


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
    row_columns,  # columns of a row of x: columns, or one more to make them even (Q4)
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
    if FORMAT == "q4":
        acc, up, inverse = _packed_products(
            x, codes, scales, squares, read, out_rows, n, T, row_columns, row_bytes, row_groups,
            parts, eps, columns, start, stop, NORM, PARTS, GATED, BLOCK_R, BLOCK_K, G, N, STAGES,
            EARLY, EVEN_K, INTERPRET, PDL,
        )  # fmt: skip
    else:
        acc, up, inverse = _plain_products(
            x, codes, squares, read, out_rows, n, T, columns, parts, eps,
            start, stop, NORM, PARTS, GATED, BLOCK_R, BLOCK_K, G, N, STAGES, EARLY, EVEN_K,
            INTERPRET, PDL,
        )  # fmt: skip
    if SPLIT == 1:
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
    EARLY: tl.constexpr, EVEN_K: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sums [BLOCK_R, N] of both halves over the columns from start to stop, of bf16 or fp8 weights,
    and the inverse root mean squares [N] of a normed stream."""
    W: tl.constexpr = BLOCK_K // G
    k = _group_columns(G, W)
    w = codes + _as_rows(read * columns, G)
    w_up = w + _long(out_rows) * columns
    x_rows = x + _as_columns(n.to(tl.int64) * columns, G)
    present = _as_columns(n < T, G)

    if EARLY:
        # The first step's weights do not wait for the kernel before this one. They are used last,
        # so that the loop's loads follow them at once.
        first = _weights(w, start + k, columns, G, EVEN_K)
        if GATED:
            first_up = _weights(w_up, start + k, columns, G, EVEN_K)
    await_inputs(PDL)
    if EARLY:
        first_x = _activations(x_rows, start + k, present, columns, G, EVEN_K)
    inverse = _inverse_rms(squares, n, T, parts, columns, eps, NORM, PARTS, N, INTERPRET)
    acc = _zeros(BLOCK_R, N, G)
    up = _zeros(BLOCK_R, N, G)
    for at in tl.range(start + EARLY * BLOCK_K, stop, BLOCK_K, num_stages=STAGES):
        weights = _weights(w, at + k, columns, G, EVEN_K)
        weights_up = weights
        if GATED:
            weights_up = _weights(w_up, at + k, columns, G, EVEN_K)
        values = _activations(x_rows, at + k, present, columns, G, EVEN_K)
        acc, up = _plain_step(acc, up, weights, weights_up, values, GATED, INTERPRET)
    if EARLY:
        first = _kept(first, INTERPRET)
        first_up = _kept(first_up, INTERPRET) if GATED else first
        first_x = _kept(first_x, INTERPRET)
        acc, up = _plain_step(acc, up, first, first_up, first_x, GATED, INTERPRET)
    return _folded(acc, G), _folded(up, G), inverse


@triton.jit
def _activations(x_rows, k, present, columns, G: tl.constexpr, EVEN_K: tl.constexpr):
    """A tile [W, N] or [G, W, N]; rows and columns that are not there are 0."""
    down = _down(k, G)
    there = present if EVEN_K else present & (down < columns)
    return tl.load(x_rows + down, mask=there, other=0.0)


@triton.jit
def _plain_step(acc, up, weights, weights_up, values, GATED: tl.constexpr, INTERPRET: tl.constexpr):
    acc = _dot(_widened(weights), values, acc, INTERPRET)
    if GATED:
        up = _dot(_widened(weights_up), values, up, INTERPRET)
    return acc, up


@triton.jit
def _inverse_rms(
    squares, n, T, parts, columns, eps, NORM: tl.constexpr, PARTS: tl.constexpr, N: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """``rsqrt(sum(parts) / columns + eps)`` [N] of each row (NORM; else the row's number). The sum
    is a product with ones, whose order does not depend on N, over the upper 16 bits of each part
    in two bf16."""
    if NORM:
        p = tl.arange(0, PARTS)
        there = (p < parts)[:, None] & (n < T)[None, :]
        place = n.to(tl.int64)[None, :] * parts + p[:, None]
        sums = tl.load(squares + place, mask=there, other=0.0)
        ones = tl.full([16, PARTS], 1.0, tl.float32).to(tl.bfloat16)
        total = _sum_halves(ones, sums, tl.zeros([16, N], tl.float32), INTERPRET)
        n = tl.rsqrt(tl.max(total, axis=0) / columns + eps)
    return n


@triton.jit
def _sum_halves(ones, values, acc, INTERPRET: tl.constexpr):
    """``acc + ones @ values`` of fp32 values, in two bf16 each. That is exact for the square of a
    bf16, and to 2^-17 for others."""
    high = (values.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    low = narrow(values - wide(high), tl.bfloat16, INTERPRET)
    return _dot(ones, low, _dot(ones, high, acc, INTERPRET), INTERPRET)


@triton.jit
def _packed_products(
    x, codes, scales, squares, read, out_rows, n, T, columns, row_bytes, row_groups, parts, eps,
    normed_columns, start, stop,
    NORM: tl.constexpr, PARTS: tl.constexpr, GATED: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr, G: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr, EVEN_K: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """As :func:`_plain_products` of four-bit codes: even and odd columns are two products, so that
    nibbles need no shuffle, and the scale of 64 columns multiplies their sum. ``columns`` is even,
    x is read as pairs of bf16, and BLOCK_K is 64 G."""
    pairs = columns // 2
    j = _group_columns(G, 32)
    w = codes + _as_rows(read * row_bytes, G)
    WORDS: tl.constexpr = G > 1 and EVEN_K
    if WORDS:
        WORD: tl.constexpr = tl.uint32 if G == 2 else tl.uint64
        s = scales.to(tl.pointer_type(WORD)) + _as_rows(read * (row_groups // G), G)
        s_up = s + _long(out_rows) * (row_groups // G)
    else:
        s = scales + _as_rows(read * row_groups, G)
        s_up = s + _long(out_rows) * row_groups
    w_up = w + _long(out_rows) * row_bytes
    words = x.to(tl.pointer_type(tl.uint32)) + _as_columns(n.to(tl.int64) * pairs, G)
    present = _as_columns(n < T, G)

    if EARLY:
        first = _packed_weights(w, start // 2 + j, row_bytes, G)
        first_s = _group_scales(s, start, row_groups, G, WORDS)
        if GATED:
            first_up = _packed_weights(w_up, start // 2 + j, row_bytes, G)
            first_s_up = _group_scales(s_up, start, row_groups, G, WORDS)
        else:
            first_s_up = first_s
    await_inputs(PDL)
    if EARLY:
        first_x = _words(words, start // 2 + j, present, pairs, G)
    inverse = _inverse_rms(squares, n, T, parts, normed_columns, eps, NORM, PARTS, N, INTERPRET)
    acc = _zeros(BLOCK_R, N, G)
    up = _zeros(BLOCK_R, N, G)
    for at in tl.range(start + EARLY * BLOCK_K, stop, BLOCK_K, num_stages=STAGES):
        weights = _packed_weights(w, at // 2 + j, row_bytes, G)
        step = _group_scales(s, at, row_groups, G, WORDS)
        weights_up = weights
        step_up = step
        if GATED:
            weights_up = _packed_weights(w_up, at // 2 + j, row_bytes, G)
            step_up = _group_scales(s_up, at, row_groups, G, WORDS)
        both = _words(words, at // 2 + j, present, pairs, G)
        acc, up = _packed_step(
            acc, up, weights, step, weights_up, step_up, both, BLOCK_R, N, GATED, G, WORDS,
            INTERPRET,
        )  # fmt: skip
    if EARLY:
        first = _kept(first, INTERPRET)
        first_up = _kept(first_up, INTERPRET) if GATED else first
        acc, up = _packed_step(
            acc, up, first, first_s, first_up, first_s_up, _kept(first_x, INTERPRET),
            BLOCK_R, N, GATED, G, WORDS, INTERPRET,
        )  # fmt: skip
    return _folded(acc, G), _folded(up, G), inverse


@triton.jit
def _words(words, j, present, pairs, G: tl.constexpr):
    """Pairs of activations, [32, N] or [G, 32, N]."""
    down = _down(j, G)
    return tl.load(words + down, mask=present & (down < pairs), other=0)


@triton.jit
def _packed_step(
    acc, up, weights, step, weights_up, step_up, both,
    BLOCK_R: tl.constexpr, N: tl.constexpr, GATED: tl.constexpr, G: tl.constexpr,
    WORDS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    even = both.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    odd = (both >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    sums = _dot(_nibbles(weights, False, INTERPRET), even, _zeros(BLOCK_R, N, G), INTERPRET)
    sums = _dot(_nibbles(weights, True, INTERPRET), odd, sums, INTERPRET)
    acc = tl.fma(sums, _spread_scales(step, G, WORDS) + tl.zeros_like(sums), acc)
    if GATED:
        sums = _dot(_nibbles(weights_up, False, INTERPRET), even, _zeros(BLOCK_R, N, G), INTERPRET)
        sums = _dot(_nibbles(weights_up, True, INTERPRET), odd, sums, INTERPRET)
        up = tl.fma(sums, _spread_scales(step_up, G, WORDS) + tl.zeros_like(sums), up)
    return acc, up


@triton.jit
def _nibbles(packed, HIGH: tl.constexpr, INTERPRET: tl.constexpr):
    """The low or high four bits of u8 as numbers -8..7 in bf16: with the sign bit flipped they are
    0..15, which is what the last bits of a bf16 from 128 to 143 count."""
    if INTERPRET:
        bits = ((packed >> 4 if HIGH else packed & 15).to(tl.uint16)) ^ 0x4308
        numbers = (wide(bits.to(tl.bfloat16, bitcast=True)) - 136.0).to(tl.bfloat16)
    else:
        numbers = tl.inline_asm_elementwise(
            _HIGH_NIBBLES if HIGH else _LOW_NIBBLES,
            "=r,=r,r",
            [packed],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=4,
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
        if kind.primitive_bitwidth == 32:
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
def _packed_weights(w, j, row_bytes, G: tl.constexpr):
    across = _across(j, G)
    return tl.load(w + across, mask=across < row_bytes, other=0, eviction_policy="evict_first")


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
