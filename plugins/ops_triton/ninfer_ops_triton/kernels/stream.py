"""Reading memory as fast as it goes."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels import lib


@triton.jit
def add_words(
    words,
    sums,
    steps,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """``sums`` i64[programs], right modulo 2^32: each program adds up ``steps`` blocks of ``words``
    i32; neighbouring programs read neighbouring blocks."""
    lib.await_inputs(PDL)
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for step in tl.range(0, steps, num_stages=STAGES):
        total += tl.load(words + (step * programs + program) * BLOCK + offsets)
    tl.store(sums + program, tl.sum(total.to(tl.int64), 0))
