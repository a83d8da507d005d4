"""The chunk form of the gated delta rule: device code.

With rows of a chunk of 64 tokens, raw keys K and queries Q of inverse lengths ``rk`` and ``rq``, G
the running sum of decays and S the state before the chunk::

    L[i, j] = beta_i rk_i rk_j (k_i . k_j) exp(G_i - G_j)    for j < i, else 0
    T = (I + L)^-1 diag(beta)
    P[i, j] = rq_i rk_j (q_i . k_j) exp(G_i - G_j)           for j <= i, else 0
    N = T (V - diag(exp(G) rk) K S)
    O = diag(exp(G) rq) Q S + P N
    S' = exp(G_last) S + K^T diag(rk exp(G_last - G)) N

:func:`prepare_kernel` makes T, P and the diagonals of all chunks at once, :func:`scan_kernel` goes
through the chunks of a head in order. This is Yang et al., "Gated Delta Networks" (2024), with T
applied to the difference of what is to be written and what the state answers, so that the two
cancel in fp32 and not after rounding.

Products run on 16-bit tensor cores. Keys, queries and values enter as they are, exactly; an fp32
factor enters as a pair of 16-bit numbers (:func:`halves`), which keeps 16 bits of it. With fp32
operands products are in fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.gdn_rule import L2_EPS
from ninfer_ops_triton.kernels.lib import (
    await_inputs,
    dot,
    narrow,
    release_dependents,
    wide,
)

TOKENS = tl.constexpr(64)
"""Of a chunk."""
SQUARE = tl.constexpr(64 * 64)


@triton.jit
def halves(x, TYPE: tl.constexpr, INTERPRET: tl.constexpr):
    """fp32 x as a sum of two numbers of ``TYPE``; the second is unused where that is fp32."""
    high = narrow(x, TYPE, INTERPRET)
    return high, narrow(x - wide(high), TYPE, INTERPRET)


@triton.jit
def dot_half(a_high, a_low, b, acc, TYPE: tl.constexpr, INTERPRET: tl.constexpr):
    """``acc + a @ b`` with b of ``TYPE``."""
    if TYPE.primitive_bitwidth < 32:
        acc = dot(a_low, b, acc, INTERPRET)
    return dot(a_high, b, acc, INTERPRET)


@triton.jit
def dot_halves(a_high, a_low, b_high, b_low, acc, TYPE: tl.constexpr, INTERPRET: tl.constexpr):
    """``acc + a @ b``, less the product of both low halves."""
    if TYPE.primitive_bitwidth < 32:
        acc = dot(a_low, b_high, acc, INTERPRET)
        acc = dot(a_high, b_low, acc, INTERPRET)
    return dot(a_high, b_high, acc, INTERPRET)


@triton.jit
def unit_lower_inverse(L, TYPE: tl.constexpr, INTERPRET: tl.constexpr):
    """``(I + L)^-1`` of a strictly lower triangular L [64, 64].

    From the inverses X of the diagonal blocks of one size follow those of twice the size: with C
    the part of L below them, ``X - X C X``. Unlike a power series of L this never forms terms
    larger than the inverses of blocks, so it stays accurate where keys repeat.
    """
    i, j = tl.arange(0, TOKENS)[:, None], tl.arange(0, TOKENS)[None, :]
    X = tl.where(i == j, 1.0, tl.where((i // 2 == j // 2), -L, 0.0))
    for level in range(1, 6):
        below = ((i >> level) != (j >> level)) & ((i >> level + 1) == (j >> level + 1))
        c_high, c_low = halves(tl.where(below, L, 0.0), TYPE, INTERPRET)
        x_high, x_low = halves(X, TYPE, INTERPRET)
        zeros = tl.zeros((TOKENS, TOKENS), tl.float32)
        y_high, y_low = halves(
            dot_halves(c_high, c_low, x_high, x_low, zeros, TYPE, INTERPRET), TYPE, INTERPRET
        )
        X -= dot_halves(x_high, x_low, y_high, y_low, zeros, TYPE, INTERPRET)
    return X


@triton.jit
def store_halves(place, x, TYPE: tl.constexpr, INTERPRET: tl.constexpr):
    """A matrix [64, 64] as its high and then its low half."""
    high, low = halves(x, TYPE, INTERPRET)
    cell = tl.arange(0, TOKENS)[:, None] * TOKENS + tl.arange(0, TOKENS)[None, :]
    tl.store(place + cell, high)
    tl.store(place + SQUARE + cell, low)


@triton.jit
def prepare_kernel(
    qkv, qkv_stride, decay, decay_stride, beta, beta_stride, matrices, vectors, tokens,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (chunks, nv): matrices [chunks, nv, 4, 64, 64] (T and P, two halves each), vectors
    [chunks, nv, 4, 64] (exp(G) rk, exp(G) rq, rk exp(G_last - G), exp(G_last))."""
    TYPE: tl.constexpr = qkv.dtype.element_ty
    chunk, head = tl.program_id(0), tl.program_id(1)
    key_head = head // (NV // NK)
    place = tl.arange(0, TOKENS)
    rows = chunk * TOKENS + place
    live = rows < tokens
    release_dependents(PDL)
    await_inputs(PDL)
    cells = qkv + rows[:, None] * qkv_stride + (key_head * DK + tl.arange(0, DK)[None, :])
    q = tl.load(cells, mask=live[:, None], other=0.0)
    k = tl.load(cells + NK * DK, mask=live[:, None], other=0.0)
    decays = tl.load(decay + rows * decay_stride + head, mask=live, other=0.0)
    betas = tl.load(beta + rows * beta_stride + head, mask=live, other=0.0)
    inverse_k = tl.rsqrt(tl.sum(wide(k) * wide(k), 1) + L2_EPS)
    inverse_q = tl.rsqrt(tl.sum(wide(q) * wide(q), 1) + L2_EPS) * (DK**-0.5)
    sums = tl.cumsum(decays, 0)
    # The last of them, not another sum: differences must be exact where nothing lies between.
    total = tl.sum(tl.where(place == TOKENS - 1, sums, 0.0), 0)
    unit = chunk * NV + head
    vector = vectors + unit * 4 * TOKENS + place
    tl.store(vector, tl.exp(sums) * inverse_k)
    tl.store(vector + TOKENS, tl.exp(sums) * inverse_q)
    tl.store(vector + 2 * TOKENS, tl.exp(total - sums) * inverse_k)
    tl.store(vector + 3 * TOKENS, tl.exp(total) + tl.zeros((TOKENS,), tl.float32))
    i, j = place[:, None], place[None, :]
    # Above the diagonal the exponent could overflow; there the ratio is not used.
    ratios = tl.exp(tl.minimum(sums[:, None] - sums[None, :], 0.0)) * inverse_k[None, :]
    zeros = tl.zeros((TOKENS, TOKENS), tl.float32)
    scores = dot(q, tl.trans(k), zeros, INTERPRET) * ratios * inverse_q[:, None]
    matrix = matrices + unit * 4 * SQUARE
    store_halves(matrix + 2 * SQUARE, tl.where(i >= j, scores, 0.0), TYPE, INTERPRET)
    overlaps = dot(k, tl.trans(k), zeros, INTERPRET) * ratios * (inverse_k * betas)[:, None]
    inverse = unit_lower_inverse(tl.where(i > j, overlaps, 0.0), TYPE, INTERPRET)
    store_halves(matrix, inverse * betas[None, :], TYPE, INTERPRET)


@triton.jit
def scan_kernel(
    qkv, qkv_stride, state, state_stride, slot, matrices, vectors, out, tokens,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (dv / BV, nv): the chunks in order for some columns of a head's state.

    Everything is transposed, the state [BV, dk] and per chunk [BV, 64], so that left factors are
    what the last product left in registers.
    """
    TYPE: tl.constexpr = qkv.dtype.element_ty
    head = tl.program_id(1)
    columns = tl.program_id(0) * BV + tl.arange(0, BV)
    of_key, place = tl.arange(0, DK), tl.arange(0, TOKENS)
    # Offsets in tiles stay the same; only scalars move from chunk to chunk.
    of_pair = place[:, None] * qkv_stride + of_key[None, :]
    of_value = place[:, None] * qkv_stride + columns[None, :]
    of_square = place[:, None] * TOKENS + place[None, :]
    of_out = place[None, :] * (NV * DV) + columns[:, None]
    release_dependents(PDL)
    await_inputs(PDL)
    home = state + tl.load(slot) * state_stride + head * DK * DV
    home += columns[:, None] + of_key[None, :] * DV
    S = tl.load(home)
    zeros = tl.zeros((BV, TOKENS), tl.float32)
    for chunk in range(tl.cdiv(tokens, TOKENS)):
        first = chunk * TOKENS
        live = place < tokens - first
        queries = qkv + first * qkv_stride + head // (NV // NK) * DK
        k = tl.load(queries + NK * DK + of_pair, mask=live[:, None], other=0.0)
        q = tl.load(queries + of_pair, mask=live[:, None], other=0.0)
        values = qkv + first * qkv_stride + (2 * NK * DK + head * DV)
        v = tl.load(values + of_value, mask=live[:, None], other=0.0)
        unit = chunk * NV + head
        matrix = matrices + unit * 4 * SQUARE
        t_high = tl.trans(tl.load(matrix + of_square))
        t_low = tl.trans(tl.load(matrix + SQUARE + of_square))
        p_high = tl.trans(tl.load(matrix + 2 * SQUARE + of_square))
        p_low = tl.trans(tl.load(matrix + 3 * SQUARE + of_square))
        vector = vectors + unit * 4 * TOKENS + place
        s_high, s_low = halves(S, TYPE, INTERPRET)
        read = dot_half(s_high, s_low, tl.trans(k), zeros, TYPE, INTERPRET)
        read *= tl.load(vector)[None, :]
        r_high, r_low = halves(wide(tl.trans(v)) - read, TYPE, INTERPRET)
        N = dot_halves(r_high, r_low, t_high, t_low, zeros, TYPE, INTERPRET)
        result = dot_half(s_high, s_low, tl.trans(q), zeros, TYPE, INTERPRET)
        result *= tl.load(vector + TOKENS)[None, :]
        n_high, n_low = halves(N, TYPE, INTERPRET)
        result = dot_halves(n_high, n_low, p_high, p_low, result, TYPE, INTERPRET)
        tl.store(out + (first * NV + head) * DV + of_out, result, mask=live[None, :])
        N *= tl.load(vector + 2 * TOKENS)[None, :]
        w_high, w_low = halves(N, TYPE, INTERPRET)
        S *= tl.load(vectors + unit * 4 * TOKENS + 3 * TOKENS)
        S = dot_half(w_high, w_low, k, S, TYPE, INTERPRET)
    tl.store(home, S)
