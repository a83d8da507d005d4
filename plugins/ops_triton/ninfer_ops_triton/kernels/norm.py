"""Norms and gates, row by row. How a row is summed does not depend on the other rows."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.lib import await_inputs, narrow, release_dependents, wide


@triton.jit
def rms_norm_kernel(
    x,  # [T, width]
    residual,  # [T, width] (ADD)
    scale,  # f32 [width]
    out,  # [T, width]
    total,  # [T, width] (ADD)
    width,
    eps,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row a program: ``total = residual + x``, rounded, and its norm."""
    release_dependents(PDL)
    k = tl.arange(0, BLOCK)
    there = k < width
    scales = tl.load(scale + k, mask=there, other=0.0)
    await_inputs(PDL)
    place = tl.program_id(0).to(tl.int64) * width + k
    values = wide(tl.load(x + place, mask=there, other=0.0))
    if ADD:
        values += wide(tl.load(residual + place, mask=there, other=0.0))
        rounded = narrow(values, total.dtype.element_ty, INTERPRET)
        tl.store(total + place, rounded, mask=there)
        values = wide(rounded)
    normed = normed_row(values, scales, width, eps)
    tl.store(out + place, narrow(normed, out.dtype.element_ty, INTERPRET), mask=there)


@triton.jit
def normed_row(values, scales, width, eps):
    """The RMS norm of fp32 values, zeros from ``width`` on."""
    inverse = tl.rsqrt(tl.sum(values * values) / width + eps)
    return values * inverse * scales


@triton.jit
def open_stream_kernel(
    residual,  # [T, width]
    scale,  # f32 [width]
    scaled,  # [T, width]
    squares,  # f32 [T, 1]
    width,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row a program: ``residual * scale``, rounded, and the row's sum of squares."""
    release_dependents(PDL)
    k = tl.arange(0, BLOCK)
    there = k < width
    scales = tl.load(scale + k, mask=there, other=0.0)
    await_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    values = wide(tl.load(residual + row * width + k, mask=there, other=0.0))
    product = narrow(values * scales, scaled.dtype.element_ty, INTERPRET)
    tl.store(scaled + row * width + k, product, mask=there)
    tl.store(squares + row, tl.sum(values * values))


@triton.jit
def gated_rms_norm_kernel(
    x,  # [T, heads, width], contiguous
    gate,  # [T, heads, width], strided
    scale,  # f32 [width]
    out,  # [T, heads, width], contiguous
    heads,
    width,
    gate_row,
    gate_head,
    eps,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """``HEADS`` heads of one token a program."""
    release_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    k = tl.arange(0, BLOCK)[None, :]
    there = (head < heads) & (k < width)
    scales = tl.load(scale + k, mask=k < width, other=0.0)
    await_inputs(PDL)
    place = (row * heads + head) * width + k
    values = wide(tl.load(x + place, mask=there, other=0.0))
    gates = wide(tl.load(gate + row * gate_row + head * gate_head + k, mask=there, other=0.0))
    inverse = tl.rsqrt(tl.sum(values * values, axis=1) / width + eps)[:, None]
    gated = scales * values * inverse * (gates / (1.0 + tl.exp(-gates)))
    tl.store(out + place, narrow(gated, out.dtype.element_ty, INTERPRET), mask=there)


@triton.jit
def swiglu_kernel(
    gate_up,  # [T, 2 width]
    out,  # [T, width]
    width,
    row_stride,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    release_dependents(PDL)
    await_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = k < width
    gate = wide(tl.load(gate_up + row * row_stride + k, mask=there, other=0.0))
    up = wide(tl.load(gate_up + row * row_stride + width + k, mask=there, other=0.0))
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + k, narrow(product, out.dtype.element_ty, INTERPRET), mask=there)


@triton.jit
def sigmoid_gate_kernel(
    x,  # [T, heads, width], strided
    gate,  # [T, heads, width], strided
    out,  # [T, heads, width], contiguous
    heads,
    width,
    x_row,
    x_head,
    gate_row,
    gate_head,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    release_dependents(PDL)
    await_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = place < heads * width
    head = place // width
    k = place % width
    values = wide(tl.load(x + row * x_row + head * x_head + k, mask=there, other=0.0))
    gates = wide(tl.load(gate + row * gate_row + head * gate_head + k, mask=there, other=0.0))
    gated = values / (1.0 + tl.exp(-gates))
    tl.store(
        out + row * heads * width + place,
        narrow(gated, out.dtype.element_ty, INTERPRET),
        mask=there,
    )
