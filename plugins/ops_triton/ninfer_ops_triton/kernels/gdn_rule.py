"""The gated delta rule of one token of one value head: what its kernels share.

A program holds the state ``[dk, dv]`` of one value head of one sequence in registers. Verify and
fold must leave the bits of steps, so products and sums that the compiler might contract differently
from kernel to kernel are kept apart or fused by hand.
"""

from __future__ import annotations

import triton
import triton.language as tl

L2_EPS = tl.constexpr(1e-6)


@triton.jit
def product(a, b, INTERPRET: tl.constexpr):
    """``a * b`` rounded once, never contracted into a following sum."""
    if INTERPRET:
        return a * b
    return tl.inline_asm_elementwise(
        "mul.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _add_pairs(a0, b0, a1, b1):
    return a0 + a1, b0 + b1


@triton.jit
def sum_rows(a, b, INTERPRET: tl.constexpr):
    """Sums of two tiles over their rows, by one reduction."""
    if INTERPRET:
        # The interpreter reduces tuples element by element in Python.
        return tl.sum(a, 0), tl.sum(b, 0)
    return tl.reduce((a, b), 0, _add_pairs)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def log_decay(a, rate, bias):
    """``-rate * softplus(a + bias)``. ``log(1 + e)`` keeps its relative precision for small e by
    the correction ``e / ((1 + e) - 1)`` (Kahan)."""
    x = a + bias
    e = tl.exp(-tl.abs(x))
    grown = 1.0 + e
    lost = grown == 1.0
    log1p = tl.where(lost, e, tl.log(grown) * (e / tl.where(lost, 1.0, grown - 1.0)))
    return -rate * (tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) + log1p)


@triton.jit
def pair_channels(key_head, NK: tl.constexpr, DK: tl.constexpr):
    """Channels [2, DK] of a key head's query and key.

    Both go through one tile: a vector of fewer elements than threads would be loaded and computed
    anew in the layout of each use, with many elements a thread.
    """
    return (tl.arange(0, 2)[:, None] * NK + key_head) * DK + tl.arange(0, DK)[None, :]


@triton.jit
def normalised_pair(pair, DK: tl.constexpr, INTERPRET: tl.constexpr):
    """Query of L2 norm ``DK^-0.5`` and key of norm 1 from their tile [2, DK]."""
    inverse = tl.rsqrt(tl.sum(product(pair, pair, INTERPRET), 1) + L2_EPS)
    scale = tl.where(tl.arange(0, 2) == 0, DK**-0.5, 1.0)
    return tl.split(tl.trans(pair * (inverse * scale)[:, None]))


@triton.jit
def delta_rule(S, q, k, v, keep, beta, INTERPRET: tl.constexpr):
    """One token: output, update u and new state of ``S' = keep S + k u^T``, ``o = S'^T q``.

    Both products read the old state: ``S'^T q = keep S^T q + (k . q) u``.
    """
    by_key, by_query = sum_rows(
        product(S, k[:, None], INTERPRET), product(S, q[:, None], INTERPRET), INTERPRET
    )
    u = beta * tl.fma(-keep, by_key, v)
    o = tl.fma(tl.sum(product(q, k, INTERPRET), 0), u, keep * by_query)
    return o, u, advanced(S, k, u, keep)


@triton.jit
def advanced(S, k, u, keep):
    """``keep S + k u^T``."""
    return tl.fma(k[:, None], u[None, :], keep * S)


@triton.jit
def state_tile(DK: tl.constexpr, DV: tl.constexpr):
    """Offsets of a head's state [DK, DV]."""
    return tl.arange(0, DK)[:, None] * DV + tl.arange(0, DV)[None, :]
