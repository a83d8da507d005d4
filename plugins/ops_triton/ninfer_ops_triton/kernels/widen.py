"""Quantised weights to bf16, for products that a library computes."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.lib import await_inputs, narrow, release_dependents, wide


@triton.jit
def widen_kernel(
    codes,  # [rows, row_codes]
    scales,  # bf16 [rows] (FP8), or fp16 of each row and group of 64 (Q4)
    out,  # bf16 [last - first, columns]
    first,
    last,
    columns,
    row_codes,
    scale_row,  # from a row's scales to the next row's
    scale_group,  # from a group's scales to the next group's
    FORMAT: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """Rows from first to last; a program writes [BLOCK_R, BLOCK_K] of them."""
    release_dependents(PDL)
    r = first + tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    row = r.to(tl.int64)
    there = (r < last) & (k < columns)
    if FORMAT == "fp8":
        numbers = wide(tl.load(codes + row * row_codes + k, mask=there, other=0.0))
        values = numbers * wide(tl.load(scales + row, mask=r < last, other=0.0))
    else:
        HALF: tl.constexpr = BLOCK_K // 2
        j = tl.program_id(1) * HALF + tl.arange(0, HALF)[None, :]
        whole = (r < last) & (j < row_codes)
        packed = tl.load(codes + row * row_codes + j, mask=whole, other=0).to(tl.int32)
        at = row * scale_row + (j // 32).to(tl.int64) * scale_group
        step = wide(tl.load(scales + at, mask=whole, other=0.0))
        even = wide(((packed & 15) ^ 8) - 8) * step
        odd = wide(((packed >> 4) ^ 8) - 8) * step
        values = tl.interleave(even, odd)
    # The kernels before this one may still read what this one writes.
    await_inputs(PDL)
    place = (row - first) * columns + k
    tl.store(out + place, narrow(values, tl.bfloat16, INTERPRET), mask=there)
