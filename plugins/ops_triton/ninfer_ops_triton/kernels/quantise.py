"""Activations to E4M3, row by row, for products that a library computes."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.kv_store import e4m3
from ninfer_ops_triton.kernels.lib import await_inputs, release_dependents, wide


@triton.jit
def quantise_rows_kernel(
    x,  # [T, width]
    codes,  # u8 [T, width]
    scales,  # f32 [T]
    width,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row a program: ``scale = amax / 448``, codes of ``x / scale`` rounded half to even. A row
    of zeros has scale 0; one that holds NaN or an infinity has scale NaN and codes 0."""
    release_dependents(PDL)
    k = tl.arange(0, BLOCK)
    there = k < width
    await_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    values = wide(tl.load(x + row * width + k, mask=there, other=0.0))
    broken = tl.max(tl.where((values - values) != 0.0, 1, 0), axis=0) > 0
    # Of a broken row no number is looked at: what a maximum makes of NaN differs.
    values = tl.where(broken, 0.0, values)
    amax = tl.max(tl.abs(values), axis=0)
    scale = tl.div_rn(amax, tl.full((), 448.0, tl.float32))
    usable = scale > 0.0
    divisor = tl.where(usable, scale, 1.0)
    scaled = tl.div_rn(values, tl.broadcast_to(divisor, (BLOCK,)))
    scaled = tl.where(usable, tl.minimum(tl.maximum(scaled, -448.0), 448.0), 0.0)
    tl.store(codes + row * width + k, e4m3(scaled), mask=there)
    tl.store(scales + row, tl.where(broken, float("nan"), scale))
