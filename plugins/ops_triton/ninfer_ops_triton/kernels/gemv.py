"""Matrix products of the decode route: few activation rows, each weight read once.

A program computes ``BLOCK_R`` rows of the product (and as many of the up half, ``GATED``) for ``N``
activation rows, over one of ``SPLIT`` parts of the columns. A step multiplies ``BLOCK_K`` columns
as ``G`` groups that are accumulated apart, so that warps can share the columns of a small tile. Of
them a program may take one of ``SHARE`` parts, each ``SHARE``-th group: what is added up over
programs then is what one program would add up over its groups, in the same order.

The bits of an output do not depend on the other rows: an element is a chain of tensor-core products
over fixed groups of columns in a fixed order. ``N`` only says how many such chains run side by
side, and rows that are not there are zeros. Sums over groups and parts are trees written out.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.lib import await_inputs, narrow, release_dependents, wide
from ninfer_ops_triton.kernels.packed import packed_products, pair_rows
from ninfer_ops_triton.kernels.squares import inverse_rms, read_squares, sum_halves
from ninfer_ops_triton.kernels.steps import (
    across_rows,
    activations,
    as_columns,
    as_rows,
    folded,
    group_columns,
    kept,
    long,
    side_by_side,
    steps_dot,
    zeros,
)


@triton.jit(do_not_specialize=["T"])
def product_kernel(
    x,  # bf16 [T, columns]
    codes,  # bf16 [rows, columns], fp8 [rows, columns] or u8 [rows, row_bytes]
    scales,  # bf16 [rows] (FP8), fp16 [row_groups, rows] (Q4)
    squares,  # f32 [T, parts], sums of which are those of the rows before x was scaled (NORM)
    residual,  # bf16 [T, out_rows] (EPILOGUE "add")
    next_scale,  # f32 [out_rows], of the norm that reads the sums (EPILOGUE "add")
    out,  # bf16 [T, out_rows], or f32 (EPILOGUE "head")
    scaled,  # bf16 [T, out_rows], the sums times next_scale (EPILOGUE "add")
    next_squares,  # f32 [T, blocks of rows] of the sums (EPILOGUE "add")
    partials,  # f32 scratch (SPLIT * SHARE > 1)
    counters,  # i32 zeros, left as zeros (SPLIT * SHARE > 1)
    T,
    out_rows,
    live_rows,  # rows that are read; logits of the others are -inf
    columns,
    quads,  # words of four bf16 in a row of x (Q4)
    row_bytes,
    row_groups,
    stored_rows,  # rows of the weight with those that fill its last block (Q4)
    parts,
    eps,
    FORMAT: tl.constexpr,
    NORM: tl.constexpr,
    PARTS: tl.constexpr,
    EPILOGUE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PART_R: tl.constexpr,  # rows of the sum that share a sum of squares (EPILOGUE "add")
    BLOCK_K: tl.constexpr,
    G: tl.constexpr,
    N: tl.constexpr,
    SPLIT: tl.constexpr,
    SHARE: tl.constexpr,  # programs that share the groups of a step, G each (not Q4)
    STAGES: tl.constexpr,
    NEAR: tl.constexpr,  # whether activations come by way of the L1 cache (not Q4)
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,  # steps whose weights do not wait for the kernel before; 0 or 1 (Q4)
    WHOLE: tl.constexpr,  # whether these are all (not Q4)
    RELEASE: tl.constexpr,  # when dependents may begin: "start", "sums" or "end"
    EVEN_K: tl.constexpr,  # whether steps end with the columns
    EVEN_EARLY: tl.constexpr,  # whether the first steps lie within the columns
    ALONE: tl.constexpr,  # whether T is 1
    PAIRS: tl.constexpr,  # whether two rows of the up half lie as a pair (Q4)
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    if RELEASE == "start":
        release_dependents(PDL)
    GATED: tl.constexpr = EPILOGUE == "swiglu"
    # Programs that read the same weights for other activation rows run side by side.
    chunk = tl.program_id(0)
    block = tl.program_id(1)
    mate = tl.program_id(2)
    part = mate // SHARE
    r = block * BLOCK_R + (pair_rows(BLOCK_R) if FORMAT == "q4" else tl.arange(0, BLOCK_R))
    n = chunk * N + tl.arange(0, N)
    # Rows past the end read the last row again: a clamp costs less than a mask.
    read = tl.minimum(r, live_rows - 1).to(tl.int64)

    steps = tl.cdiv(tl.cdiv(columns, BLOCK_K), SPLIT)
    start = part * steps * BLOCK_K
    stop = tl.minimum(columns, start + steps * BLOCK_K)
    if PDL:
        BYTES: tl.constexpr = codes.dtype.element_ty.primitive_bitwidth // 8
        # Blocks of 16 rows lie in one piece (Q4).
        TOGETHER: tl.constexpr = 16 if FORMAT == "q4" else 1
        STEP: tl.constexpr = BLOCK_K * 8 if FORMAT == "q4" else BLOCK_K * BYTES
        first = (start // BLOCK_K + EARLY) * STEP
        _ask_ahead(codes, block * BLOCK_R, stored_rows, row_bytes, first, BLOCK_R, TOGETHER, STEP,
                   AHEAD)  # fmt: skip
        if GATED:
            _ask_ahead(codes, out_rows + block * BLOCK_R, stored_rows, row_bytes, first, BLOCK_R,
                       TOGETHER, STEP, AHEAD)  # fmt: skip
    # Read ahead of the loop where that takes few registers, to be added up behind it: before, the
    # loop's loads would wait for that.
    FIRST: tl.constexpr = NORM and PARTS * (1 if ALONE else N) <= 2048
    if FORMAT == "q4":
        acc, up, sums = packed_products(
            x, codes, scales, squares, block * BLOCK_R, out_rows, n, T, quads, row_bytes,
            row_groups, stored_rows, parts, start, stop, FIRST, PARTS, GATED, BLOCK_R, BLOCK_K, G,
            N, STAGES, EARLY, EVEN_K, ALONE, PAIRS, INTERPRET, PDL,
        )  # fmt: skip
    else:
        acc, up, sums = _plain_products(
            x, codes, squares, read, out_rows, n, T, columns, parts, start, stop, mate % SHARE,
            FIRST, PARTS, GATED, BLOCK_R, BLOCK_K, G, N, SHARE, STAGES, NEAR, EARLY, WHOLE,
            EVEN_K, EVEN_EARLY, ALONE, INTERPRET, PDL,
        )  # fmt: skip
    if RELEASE == "sums":
        release_dependents(PDL)
    inverse = wide(n)
    MATES: tl.constexpr = SPLIT * SHARE
    if MATES == 1:
        if NORM:
            late = sums if FIRST else read_squares(squares, n, T, parts, PARTS, ALONE)
            inverse = inverse_rms(late, columns, eps, PARTS, N, INTERPRET)
        _finish(
            acc, up, inverse, scales, residual, next_scale, out, scaled, next_squares, read, block,
            r, n, T, out_rows, live_rows, FORMAT, NORM, EPILOGUE, BLOCK_R, PART_R, N, INTERPRET,
        )  # fmt: skip
    else:
        TILE: tl.constexpr = BLOCK_R * N
        place = block * tl.num_programs(0) + chunk
        # In the order of the output, so that a thread finds what it stores.
        tile = tl.arange(0, BLOCK_R)[:, None] + tl.arange(0, N)[None, :] * BLOCK_R
        area = partials + place.to(tl.int64) * (MATES * 2 * TILE)
        mine = area + mate * (2 * TILE)
        tl.store(mine + tile, acc)
        if GATED:
            tl.store(mine + TILE + tile, up)
        # All threads have stored before one of them says so.
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + place, 1, sem="acq_rel", scope="gpu")
        if arrived == MATES - 1:
            acc = _shared_sum(area + tile, 2 * TILE, SHARE)
            up = _shared_sum(area + tile + TILE, 2 * TILE, SHARE) if GATED else acc
            if SPLIT > 1:
                # As a sum from zero on: it has no negative zero.
                acc += 0.0
                up += 0.0
                for other in tl.static_range(1, SPLIT):
                    their = area + other * (SHARE * 2 * TILE) + tile
                    acc += _shared_sum(their, 2 * TILE, SHARE)
                    if GATED:
                        up += _shared_sum(their + TILE, 2 * TILE, SHARE)
            # One change of layout, not one for each part.
            acc = kept(acc, INTERPRET)
            up = kept(up, INTERPRET)
            tl.store(counters + place, 0)
            if NORM:
                late = sums if FIRST else read_squares(squares, n, T, parts, PARTS, ALONE)
                inverse = inverse_rms(late, columns, eps, PARTS, N, INTERPRET)
            _finish(
                acc, up, inverse, scales, residual, next_scale, out, scaled, next_squares, read,
                block, r, n, T, out_rows, live_rows, FORMAT, NORM, EPILOGUE, BLOCK_R, PART_R, N,
                INTERPRET,
            )  # fmt: skip


@triton.jit
def _shared_sum(places, STEP: tl.constexpr, SHARE: tl.constexpr):
    """Sums of SHARE programs, in the order in which :func:`folded` adds groups."""
    if SHARE == 1:
        total = tl.load(places, cache_modifier=".cg")
    else:
        even = _shared_sum(places, 2 * STEP, SHARE // 2)
        total = even + _shared_sum(places + STEP, 2 * STEP, SHARE // 2)
    return total


@triton.jit
def _ask_ahead(
    codes, first_row, stored_rows, row_bytes, first, BLOCK_R: tl.constexpr, TOGETHER: tl.constexpr,
    STEP: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Ask for ``AHEAD`` times ``STEP`` bytes of each piece of ``TOGETHER`` rows, from its byte
    ``first`` on: they come into the L2 cache while this kernel waits for the one before it."""
    if AHEAD > 0:
        LINES: tl.constexpr = (AHEAD * STEP + 127) // 128
        row = first_row + tl.arange(0, BLOCK_R // TOGETHER) * TOGETHER
        pieces = tl.minimum(row, stored_rows - 1) // TOGETHER
        size = long(row_bytes) * TOGETHER
        at = tl.minimum(first + tl.arange(0, LINES) * 128, size - 1)
        places = codes.to(tl.int64) + pieces[:, None] * size + at[None, :]
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
    x, codes, squares, read, out_rows, n, T, columns, parts, start, stop, share,
    FIRST: tl.constexpr, PARTS: tl.constexpr, GATED: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr, G: tl.constexpr, N: tl.constexpr, SHARE: tl.constexpr,
    STAGES: tl.constexpr, NEAR: tl.constexpr, EARLY: tl.constexpr, WHOLE: tl.constexpr,
    EVEN_K: tl.constexpr, EVEN_EARLY: tl.constexpr, ALONE: tl.constexpr, INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Sums [BLOCK_R, N] of both halves over the columns from start to stop, of bf16 or fp8 weights,
    and the squares of a normed stream (FIRST). Of a step's G * SHARE groups the SHARE-th ones from
    ``share`` on are summed."""
    W: tl.constexpr = BLOCK_K // (G * SHARE)
    # One bf16 is too little to be fetched ahead.
    ONE: tl.constexpr = ALONE and codes.dtype.element_ty != tl.bfloat16
    k = group_columns(G, W, SHARE) + share * W
    w = codes + as_rows(read * columns, G)
    w_up = w + long(out_rows) * columns
    # One row is read alone, and multiplied in all N places.
    n_read = tl.arange(0, 1) if ONE else n
    x_rows = x + as_columns(n_read.to(tl.int64) * columns, G)
    if NEAR:
        # Nothing, in name: of what is known to lie at multiples of 8 bytes alone, copies are of 8
        # bytes, and such ones go through the L1 cache.
        x_rows += tl.multiple_of(T >> 30, 4)
    present = as_columns(n_read < T, G)

    # Groups of the first steps together are as many columns side by side.
    BROAD: tl.constexpr = W * EARLY
    HELD: tl.constexpr = EARLY == 1 or (EARLY > 1 and N <= 8)
    begins = start + share * BROAD
    if HELD:
        # The first steps' weights do not wait for the kernel before this one. They are used last,
        # so that the loop's loads follow them at once.
        broad = begins + group_columns(G, BROAD, SHARE)
        first = _weights(w, broad, columns, G, EVEN_EARLY)
        if GATED:
            first_up = _weights(w_up, broad, columns, G, EVEN_EARLY)
    if HELD and EARLY > 1:
        # All are asked for before the first is stored, which the compiler would mix.
        tl.debug_barrier()
        first = kept(first, INTERPRET)
        if GATED:
            first_up = kept(first_up, INTERPRET)
    await_inputs(PDL)
    sums = read_squares(squares, n, T, parts, PARTS, ALONE) if FIRST else n
    if HELD:
        first_x = activations(x_rows, broad, present, columns, G, EVEN_EARLY, ONE)
    acc = zeros(BLOCK_R, N, G)
    up = zeros(BLOCK_R, N, G)
    if not WHOLE:
        for at in tl.range(start + EARLY * BLOCK_K, stop, BLOCK_K, num_stages=STAGES):
            weights = _weights(w, at + k, columns, G, EVEN_K)
            weights_up = weights
            if GATED:
                weights_up = _weights(w_up, at + k, columns, G, EVEN_K)
            values = activations(x_rows, at + k, present, columns, G, EVEN_K, ONE)
            acc, up = _plain_step(acc, up, weights, weights_up, values, W, GATED, INTERPRET)
    if HELD:
        # More than a step's weights lie in shared memory before the wait, where products read them:
        # to wait for them there costs nothing, since little else is to be loaded behind it.
        if EARLY == 1:
            first = kept(first, INTERPRET)
            first_up = kept(first_up, INTERPRET) if GATED else first
            first_x = kept(first_x, INTERPRET)
        else:
            tl.debug_barrier()
            if not GATED:
                first_up = first
        acc, up = _plain_step(acc, up, first, first_up, first_x, W, GATED, INTERPRET)
    elif EARLY:
        # The same products in the same order, with more activations than registers hold.
        for early in tl.range(0, EARLY, num_stages=STAGES):
            of_step = begins + group_columns(G, W, SHARE * EARLY) + early * W
            weights = _weights(w, of_step, columns, G, EVEN_EARLY)
            weights_up = weights
            if GATED:
                weights_up = _weights(w_up, of_step, columns, G, EVEN_EARLY)
            values = activations(x_rows, of_step, present, columns, G, EVEN_EARLY, ONE)
            acc, up = _plain_step(acc, up, weights, weights_up, values, W, GATED, INTERPRET)
    return folded(acc, G), folded(up, G), sums


@triton.jit
def _plain_step(
    acc, up, weights, weights_up, values, W: tl.constexpr, GATED: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """The sums and some steps, ``W`` columns of a group each."""
    values = side_by_side(values, acc.shape[-1])
    acc = steps_dot(_widened(weights), values, acc, W, INTERPRET)
    if GATED:
        up = steps_dot(_widened(weights_up), values, up, W, INTERPRET)
    return acc, up


@triton.jit
def _finish(
    acc, up, inverse, scales, residual, next_scale, out, scaled, next_squares, read, block, r, n, T,
    out_rows, live_rows,
    FORMAT: tl.constexpr, NORM: tl.constexpr, EPILOGUE: tl.constexpr, BLOCK_R: tl.constexpr,
    PART_R: tl.constexpr, N: tl.constexpr, INTERPRET: tl.constexpr,
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
            _store_squares(sums, next_squares, block, n, T, out_rows, BLOCK_R, PART_R, N, INTERPRET)


@triton.jit
def _store_squares(
    sums, next_squares, block, n, T, out_rows, BLOCK_R: tl.constexpr, PART_R: tl.constexpr,
    N: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Sums of squares of PART_R rows each, whose bits do not depend on BLOCK_R."""
    P: tl.constexpr = BLOCK_R // PART_R
    blocks = tl.cdiv(out_rows, PART_R)
    if P == 1:
        ones = tl.full([16, PART_R], 1.0, tl.float32).to(tl.bfloat16)
        zero = tl.zeros([16, N], tl.float32)
        total = tl.max(sum_halves(ones, sums * sums, zero, INTERPRET), axis=0)
        tl.store(next_squares + n.to(tl.int64) * blocks + block, total, mask=n < T)
    else:
        values = tl.reshape(sums, [P, PART_R, N])
        ones = tl.full([P, 16, PART_R], 1.0, tl.float32).to(tl.bfloat16)
        zero = tl.zeros([P, 16, N], tl.float32)
        total = tl.max(sum_halves(ones, values * values, zero, INTERPRET), axis=1)
        part = block * P + tl.arange(0, P)[:, None]
        place = n.to(tl.int64)[None, :] * blocks + part
        tl.store(next_squares + place, total, mask=(n < T)[None, :] & (part < blocks))


@triton.jit
def _weights(w, k, columns, G: tl.constexpr, EVEN_K: tl.constexpr):
    """A tile [BLOCK_R, W] or [G, BLOCK_R, W]; columns that are not there are 0."""
    across = across_rows(k, G)
    if EVEN_K:
        tile = tl.load(w + across, eviction_policy="evict_first")
    else:
        tile = tl.load(w + across, mask=across < columns, other=0.0, eviction_policy="evict_first")
    return tile


@triton.jit
def _widened(weights):
    return weights if weights.dtype == tl.bfloat16 else wide(weights).to(tl.bfloat16)
