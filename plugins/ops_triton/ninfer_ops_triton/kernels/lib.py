"""Small device functions that kernels share.

Triton's interpreter keeps bf16 as raw bits: its arithmetic, its dot products and its rounding of
fp32 to bf16 are wrong there. Kernels therefore widen on load (:func:`wide`), compute in fp32, round
by :func:`narrow` and multiply by :func:`dot`, which are plain operations on a GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def wide(x):
    """To fp32."""
    return x.to(tl.float32)


@triton.jit
def narrow(x, dtype: tl.constexpr, INTERPRET: tl.constexpr):
    """fp32 to ``dtype``, to nearest even."""
    if INTERPRET and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        nan = x != x
        rounded = tl.where(nan, 0x7FC00000, rounded)
        return (rounded >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(dtype)


@triton.jit
def dot(a, b, acc, INTERPRET: tl.constexpr):
    """``acc + a @ b`` with fp32 accumulation; fp32 operands multiply in full precision."""
    if INTERPRET:
        return acc + tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def await_inputs(PDL: tl.constexpr):
    """Wait for the kernels before this one. Every program of a dependent kernel calls it before it
    reads what they wrote or writes what they read."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def release_dependents(PDL: tl.constexpr):
    """Let the next kernel start filling the machine; what it may touch it decides by its wait."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
