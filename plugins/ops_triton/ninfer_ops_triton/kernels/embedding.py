"""Rows of a table in any weight format."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.lib import await_inputs, narrow, release_dependents, wide


@triton.jit
def embedding_kernel(
    ids,  # i32 or i64 [T]
    codes,  # [rows, row_codes]
    scales,  # bf16 [rows] (FP8), or fp16 of each row and group of 64 (Q4)
    out,  # bf16 [T, columns]
    columns,
    row_codes,
    scale_row,  # from a row's scales to the next row's
    scale_group,  # from a group's scales to the next group's
    FORMAT: tl.constexpr,
    TILED: tl.constexpr,  # whether four-bit codes lie in blocks
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    release_dependents(PDL)
    await_inputs(PDL)
    t = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = k < columns
    row = tl.load(ids + t).to(tl.int64)
    values = table_row(
        codes, scales, row, k, there, row_codes, scale_row, scale_group, FORMAT, TILED, INTERPRET
    )
    tl.store(out + t * columns + k, values, mask=there)


@triton.jit
def table_row(
    codes, scales, row, k, there, row_codes, scale_row, scale_group,
    FORMAT: tl.constexpr, TILED: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """bf16 at the columns ``k`` of a row, where ``there``, with the arguments of
    :func:`embedding_kernel`."""
    if FORMAT == "bf16":
        values = tl.load(codes + row * row_codes + k, mask=there, other=0.0)
    elif FORMAT == "fp8":
        numbers = wide(tl.load(codes + row * row_codes + k, mask=there, other=0.0))
        values = narrow(numbers * wide(tl.load(scales + row)), tl.bfloat16, INTERPRET)
    else:
        place = tiled_byte(row, k, row_codes) if TILED else row * row_codes + k // 2
        packed = tl.load(codes + place, mask=there, other=0).to(tl.int32)
        numbers = wide((((packed >> (k % 2 * 4)) & 15) ^ 8) - 8)
        place = row * scale_row + (k // 64).to(tl.int64) * scale_group
        step = wide(tl.load(scales + place, mask=there, other=0.0))
        values = narrow(numbers * step, tl.bfloat16, INTERPRET)
    return values


@triton.jit
def tiled_byte(row, k, row_bytes):
    """Where column ``k`` of a row lies among codes in blocks of 16 rows by 64 columns
    (:data:`ninfer_ops_triton.weights.Q4_TILED`)."""
    word = row % 16 // 2 * 16 + k % 32 // 8 * 4 + k % 64 // 32 * 2 + row % 2
    return row // 16 * (row_bytes * 16) + k // 64 * 512 + word * 4 + k % 8 // 2
