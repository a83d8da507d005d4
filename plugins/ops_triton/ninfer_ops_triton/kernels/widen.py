"""Quantised weights to bf16, for products that a library computes."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.lib import await_inputs, narrow, release_dependents, wide


@triton.jit
def widen_kernel(
    codes,  # [rows, row_codes]
    scales,  # bf16 [rows] (FP8), or fp16 [row_groups, stored_rows] (Q4)
    out,  # bf16 [last - first, columns]
    first,
    last,
    columns,
    row_codes,
    stored_rows,  # rows with those that fill the last block (Q4)
    FORMAT: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """Rows from first to last; a program writes [BLOCK_R, BLOCK_K] of them. Four-bit codes lie in
    blocks of BLOCK_R = 16 rows (:data:`ninfer_ops_triton.weights.Q4_TILED`), of which first begins
    one."""
    release_dependents(PDL)
    if FORMAT == "fp8":
        r = first + tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
        k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
        row = r.to(tl.int64)
        there = (r < last) & (k < columns)
        numbers = wide(tl.load(codes + row * row_codes + k, mask=there, other=0.0))
        values = numbers * wide(tl.load(scales + row, mask=r < last, other=0.0))
    else:
        # A word is eight neighbouring columns of a row.
        word = tl.arange(0, 2 * BLOCK_K)[:, None]
        group = tl.program_id(1) * (BLOCK_K // 64) + word // 128
        block = first // 16 + tl.program_id(0)
        r = block * 16 + word % 128 // 16 * 2 + word % 2
        inside = word % 4 // 2 * 32 + word % 16 // 4 * 8
        k = group * 64 + inside + tl.arange(0, 8)[None, :]
        row = r.to(tl.int64)
        there = (r < last) & (k < columns)
        real = group * 32 < row_codes
        words = codes.to(tl.pointer_type(tl.uint32)) + block.to(tl.int64) * (row_codes * 4)
        packed = tl.load(words + group * 128 + word % 128, mask=real, other=0)
        step = wide(tl.load(scales + group * stored_rows + r, mask=real, other=0.0))
        nibbles = ((packed >> (4 * tl.arange(0, 8)[None, :])) & 15).to(tl.int32)
        values = wide((nibbles ^ 8) - 8) * step
    # The kernels before this one may still read what this one writes.
    await_inputs(PDL)
    place = (row - first) * columns + k
    tl.store(out + place, narrow(values, tl.bfloat16, INTERPRET), mask=there)
