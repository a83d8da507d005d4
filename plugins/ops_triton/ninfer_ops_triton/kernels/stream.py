"""Reading memory as fast as it goes."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels import lib


@triton.jit
def fold_words(
    words,
    folds,
    steps,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """``folds`` i32[programs]: the exclusive or of the ``steps`` blocks of ``words`` i32 that each
    program reads; neighbouring programs read neighbouring blocks."""
    lib.await_inputs(PDL)
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for step in tl.range(0, steps, num_stages=STAGES):
        total ^= tl.load(words + (step * programs + program) * BLOCK + offsets)
    tl.store(folds + program, tl.xor_sum(total, 0))
