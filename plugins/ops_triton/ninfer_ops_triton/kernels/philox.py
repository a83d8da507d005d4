"""Counter-based random numbers on the device: Philox4x32-10 (Salmon et al., SC 2011)."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels import lib

FACTOR_0 = tl.constexpr(0xD2511F53)
FACTOR_1 = tl.constexpr(0xCD9E8D57)
STEP_0 = tl.constexpr(0x9E3779B9)
STEP_1 = tl.constexpr(0xBB67AE85)
WORD = tl.constexpr(0xFFFFFFFF)


@triton.jit
def number(seed, position, purpose):
    """The 24 bits, as i64, of the uniform number 0 of (seed, position, purpose): word 0 of the
    counter (position, purpose, 0, 0), shifted right by 8. seed i64, the bits of a u64."""
    bits = seed.to(tl.uint64)
    k0, k1 = bits & WORD, bits >> 32
    c0 = position.to(tl.uint64) & WORD
    c1 = (c0 & 0) + purpose
    c2, c3 = c0 & 0, c0 & 0
    for _ in tl.static_range(10):
        p0, p1 = c0 * FACTOR_0, c2 * FACTOR_1
        c0, c1 = (p1 >> 32) ^ c1 ^ k0, p1 & WORD
        c2, c3 = (p0 >> 32) ^ c3 ^ k1, p0 & WORD
        k0, k1 = (k0 + STEP_0) & WORD, (k1 + STEP_1) & WORD
    return (c0 >> 8).to(tl.int64)


@triton.jit
def share(number, total):
    """``floor(u * total)`` of the number's u in [0, 1), exactly; 0 <= total < 2^62."""
    high, low = total >> 24, total & 0xFFFFFF
    return number * high + ((number * low) >> 24)


@triton.jit
def numbers(
    seeds,
    positions,
    out,
    purpose,
    width,
    count,
    BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
    PDL: tl.constexpr,
):
    """``out`` i64[count]: the numbers of rows; row t has seed ``t // width``. One program."""
    lib.release_dependents(PDL)
    row = tl.arange(0, BLOCK)
    inside = row < count
    lib.await_inputs(PDL)
    seed = tl.load(seeds + row // width, inside, other=0)
    position = tl.load(positions + row, inside, other=0)
    tl.store(out + row, number(seed, position, purpose), inside)
