"""An order of tokens as integers, and the first of it in a row of logits.

A token's code is larger when it comes first: by logit, ties by lower id. It holds the logit's bits
in an order-preserving form above the inverted id, so codes of a row are distinct and a maximum, a
count or a descent over them needs no care for ties.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels import lib

ID_BITS = tl.constexpr(20)
CODE_BITS = tl.constexpr(52)
LAST_ID = tl.constexpr((1 << 20) - 1)
SIGN = tl.constexpr(1 << 31)
LAWLESS = tl.constexpr(1 << 60)
"""In the place of a code: the row holds a NaN."""
BROKEN = tl.constexpr(1 << 61)
"""In the place of a code: the row's raw logits hold a NaN or an infinity."""


@triton.jit
def order_key(x):
    """fp32 to i64 in 0 .. 2^32 - 1, in the order of the numbers; both zeros are one."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + SIGN


@triton.jit
def key_value(key):
    """The fp32 that :func:`order_key` took."""
    bits = (key - SIGN).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def code_of(x, ids):
    """Logits and their ids (below 2^20) as codes i64."""
    return (order_key(x) << ID_BITS) | (ids ^ LAST_ID).to(tl.int64)


@triton.jit
def code_value(code):
    return key_value(code >> ID_BITS)


@triton.jit
def code_id(code):
    return ((code & LAST_ID) ^ LAST_ID).to(tl.int32)


@triton.jit
def argmax_blocks(
    logits,
    best,
    stride,
    vocabulary,
    addressable,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """``best`` i64[T, blocks]: the largest code of each block, or BROKEN. Grid (T, blocks)."""
    lib.release_dependents(PDL)
    row, block = tl.program_id(0), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    lib.await_inputs(PDL)
    # The mask of the load is the row's even width, so that loads can be wide.
    x = tl.load(logits + row.to(tl.int64) * stride + ids, ids < vocabulary, other=0.0)
    code = tl.where(tl.abs(x) < float("inf"), code_of(x, ids), BROKEN)
    code = tl.where(ids < addressable, code, -1)
    tl.store(best + row * tl.num_programs(1) + block, tl.max(code, 0))


@triton.jit
def argmax_finish(
    best,
    tokens,
    broken,
    blocks,
    BLOCKS: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """tokens i32[T] and broken bool[T] from :func:`argmax_blocks`. Grid (T,)."""
    lib.release_dependents(PDL)
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    lib.await_inputs(PDL)
    code = tl.max(tl.load(best + row * blocks + block, block < blocks, other=-1), 0)
    bad = code == BROKEN
    tl.store(tokens + row, tl.where(bad, 0, code_id(code)))
    tl.store(broken + row, bad)
