"""Rows at the ends of a forward pass, one a program.

Sums, roundings and layouts are those of the kernels that these stand for, so that bits are too.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.embedding import table_row
from ninfer_ops_triton.kernels.lib import await_inputs, narrow, release_dependents, wide
from ninfer_ops_triton.kernels.norm import normed_row


@triton.jit
def embed_stream_kernel(
    ids, codes, scales, scale, residual, scaled, squares, width, row_codes, scale_row, scale_group,
    FORMAT: tl.constexpr, TILED: tl.constexpr, BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A row of the table, that times ``scale``, and its sum of squares."""
    release_dependents(PDL)
    k = tl.arange(0, BLOCK)
    there = k < width
    factors = tl.load(scale + k, mask=there, other=0.0)
    await_inputs(PDL)
    t = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + t).to(tl.int64)
    values = table_row(
        codes, scales, row, k, there, row_codes, scale_row, scale_group, FORMAT, TILED, INTERPRET
    )
    tl.store(residual + t * width + k, values, mask=there)
    values = tl.where(there, wide(values), 0.0)
    tl.store(scaled + t * width + k, narrow(values * factors, tl.bfloat16, INTERPRET), mask=there)
    tl.store(squares + t, tl.sum(values * values))


@triton.jit(do_not_specialize=["columns"])
def hand_over_kernel(
    residual, scale, pool, slots, kept, places, before, width, columns, eps,
    BLOCK: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``columns`` rows of each sequence. The program of a sequence's first one also moves what
    stands before it."""
    release_dependents(PDL)
    k = tl.arange(0, BLOCK)
    there = k < width
    scales = tl.load(scale + k, mask=there, other=0.0)
    await_inputs(PDL)
    t = tl.program_id(0)
    b, w = t // columns, t % columns
    row = t.to(tl.int64) * width + k
    values = wide(tl.load(residual + row, mask=there, other=0.0))
    normed = narrow(normed_row(values, scales, width, eps), kept.dtype.element_ty, INTERPRET)
    place = tl.load(places + b).to(tl.int64) + w
    tl.store(kept + place * width + k, normed, mask=there)
    if w + 1 < columns:
        tl.store(before + row + width, normed, mask=there)
    if w == 0:
        first = pool + tl.load(slots + b) * width + k
        tl.store(before + row, tl.load(first, mask=there, other=0.0), mask=there)


@triton.jit
def draft_inputs_kernel(
    ids, codes, table_scales, token_scale, hidden, hidden_row, hidden_scale, inner_scale, out,
    width, row_codes, scale_row, scale_group, eps,
    FORMAT: tl.constexpr, TILED: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (T, 2): the token's half of a row and the hidden one's."""
    release_dependents(PDL)
    k = tl.arange(0, BLOCK)
    there = k < width
    t = tl.program_id(0).to(tl.int64)
    place = out + t * (2 * width) + k
    dtype: tl.constexpr = out.dtype.element_ty
    if tl.program_id(1) == 0:
        scales = tl.load(token_scale + k, mask=there, other=0.0)
        await_inputs(PDL)
        row = tl.load(ids + t).to(tl.int64)
        values = table_row(
            codes, table_scales, row, k, there, row_codes, scale_row, scale_group, FORMAT, TILED,
            INTERPRET,
        )  # fmt: skip
        values = tl.where(there, wide(values), 0.0)
        normed = normed_row(values, scales, width, eps)
        tl.store(place, narrow(normed, dtype, INTERPRET), mask=there)
    else:
        scales = tl.load(hidden_scale + k, mask=there, other=0.0)
        inner = tl.load(inner_scale + k, mask=there, other=0.0) if INNER else scales
        await_inputs(PDL)
        values = wide(tl.load(hidden + t * hidden_row + k, mask=there, other=0.0))
        if INNER:
            values = wide(narrow(normed_row(values, inner, width, eps), dtype, INTERPRET))
        normed = normed_row(values, scales, width, eps)
        tl.store(place + width, narrow(normed, dtype, INTERPRET), mask=there)
