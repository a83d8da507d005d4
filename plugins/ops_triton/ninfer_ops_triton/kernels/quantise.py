"""Activations to E4M3, row by row, for products that a library computes."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.kv_store import e4m3
from ninfer_ops_triton.kernels.lib import await_inputs, release_dependents

INFINITE = tl.constexpr(0x7F80)
"""Bits of bf16 without their sign from which on they stand for no number."""

SMALLEST = tl.constexpr(2.0**-119)
"""Below it 448 / amax leaves fp32."""


@triton.jit
def quantise_rows_kernel(
    x,  # i16 [T, width], the bits of bf16
    codes,  # u8 [T, width], the bits of E4M3
    scales,  # f32 [T]
    width,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row a program: ``scale = amax / 448``, codes are ``x * (448 / amax)`` rounded half to
    even. A row below SMALLEST has scale 0 and codes 0; one that holds NaN or an infinity has scale
    NaN and codes 0. Magnitudes are compared as integers, in whose order NaN comes last."""
    release_dependents(PDL)
    await_inputs(PDL)
    row = tl.program_id(0).to(tl.int64) * width
    k = tl.arange(0, BLOCK)
    most = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, width, BLOCK):
        bits = tl.load(x + row + first + k, mask=first + k < width, other=0).to(tl.int32)
        most = tl.maximum(most, bits & 0x7FFF)
    top = tl.max(most, axis=0)
    amax = (top << 16).to(tl.float32, bitcast=True)
    usable = (top < INFINITE) & (amax >= SMALLEST)
    amax = tl.where(usable, amax, 1.0)
    inverse = tl.where(usable, tl.div_rn(448.0, amax), 0.0)
    for first in range(0, width, BLOCK):
        there = first + k < width
        bits = tl.load(x + row + first + k, mask=there, other=0).to(tl.int32)
        # Without this, a number that is none would stay one: infinity by 0 is NaN.
        bits = tl.where(usable, bits, 0)
        scaled = (bits << 16).to(tl.float32, bitcast=True) * inverse
        # The interpreter's own cast rounds some numbers wrongly.
        made = e4m3(scaled) if INTERPRET else scaled.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        tl.store(codes + row + first + k, made, mask=there)
    scale = tl.where(usable, tl.div_rn(amax, 448.0), 0.0)
    tl.store(scales + tl.program_id(0), tl.where(top < INFINITE, scale, float("nan")))
