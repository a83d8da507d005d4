"""Sums of squares of a normed stream's rows, in parts, to inverse root mean squares."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.lib import narrow, wide
from ninfer_ops_triton.kernels.steps import (
    as_columns,
    chain_dot,
    down_columns,
    folded,
    group_columns,
    kept,
    side_by_side,
    zeros,
)


@triton.jit
def read_squares(squares, n, T, parts, PARTS: tl.constexpr, ALONE: tl.constexpr):
    """The parts of each row, f32 [PARTS, N], or [PARTS, 1] (ALONE), in up to eight groups that
    warps share; what is not there is 0."""
    G: tl.constexpr = 8 if PARTS >= 128 else PARTS // 16
    p = group_columns(G, PARTS // G)
    n_read = tl.arange(0, 1) if ALONE else n
    there = down_columns(p < parts, G) & as_columns(n_read < T, G)
    place = as_columns(n_read.to(tl.int64) * parts, G) + down_columns(p, G)
    return tl.load(squares + place, mask=there, other=0.0)


@triton.jit
def inverse_rms(sums, columns, eps, PARTS: tl.constexpr, N: tl.constexpr, INTERPRET: tl.constexpr):
    """``rsqrt(sum(parts) / columns + eps)`` [N] of what :func:`read_squares` gave. The sum is a
    product with ones, whose order does not depend on N."""
    G: tl.constexpr = 8 if PARTS >= 128 else PARTS // 16
    values = side_by_side(kept(sums, INTERPRET), N)
    SHAPE: tl.constexpr = [16, PARTS] if G == 1 else [G, 16, PARTS // G]
    ones = tl.full(SHAPE, 1.0, tl.float32).to(tl.bfloat16)
    # One of 16 equal rows, before groups come together: that is little to change places.
    total = tl.max(sum_halves(ones, values, zeros(16, N, G), INTERPRET), axis=0 if G == 1 else 1)
    if G > 1:
        total = tl.reshape(folded(tl.reshape(total, [G, 1, N]), G), [N])
    return tl.rsqrt(total / columns + eps)


@triton.jit
def sum_halves(ones, values, acc, INTERPRET: tl.constexpr):
    """``acc + ones @ values`` of fp32 values, in two bf16 each. That is exact for the square of a
    bf16, and to 2^-17 for others."""
    high = (values.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    low = narrow(values - wide(high), tl.bfloat16, INTERPRET)
    return chain_dot(ones, low, chain_dot(ones, high, acc, INTERPRET), INTERPRET)
