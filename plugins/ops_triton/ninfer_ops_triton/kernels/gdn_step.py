"""The gated delta rule token by token: gates, step, verify and fold, each a kernel."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.gdn_rule import (
    advanced,
    delta_rule,
    log_decay,
    normalised_pair,
    pair_channels,
    sigmoid,
    state_tile,
)
from ninfer_ops_triton.kernels.lib import await_inputs, release_dependents, wide


@triton.jit
def gates_kernel(
    a, a_stride, b, b_stride, rate, bias, decay, beta, total,
    NV: tl.constexpr, BLOCK: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of T * nv elements)."""
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = element < total
    row, head = element // NV, element % NV
    rates = tl.load(rate + head, mask=live, other=0.0)
    biases = tl.load(bias + head, mask=live, other=0.0)
    release_dependents(PDL)
    await_inputs(PDL)
    raw_a = wide(tl.load(a + row * a_stride + head, mask=live, other=0.0))
    raw_b = wide(tl.load(b + row * b_stride + head, mask=live, other=0.0))
    tl.store(decay + element, log_decay(raw_a, rates, biases), mask=live)
    tl.store(beta + element, sigmoid(raw_b), mask=live)


@triton.jit
def load_token(
    qkv, head, NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """Scaled query, normalised key and value of a value head from a row of q|k|v."""
    pair = wide(tl.load(qkv + pair_channels(head // (NV // NK), NK, DK)))
    v = wide(tl.load(qkv + 2 * NK * DK + head * DV + tl.arange(0, DV)))
    q, k = normalised_pair(pair, DK, INTERPRET)
    return q, k, v


@triton.jit
def step_kernel(
    qkv, qkv_stride, decay, decay_stride, beta, beta_stride, state, state_stride, slots, targets,
    out,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (B * nv). The whole state is read before it is written: a target may be its slot."""
    row, head = (tl.program_id(0) // NV).to(tl.int64), tl.program_id(0) % NV
    tile = head * DK * DV + state_tile(DK, DV)
    release_dependents(PDL)
    await_inputs(PDL)
    S = tl.load(state + tl.load(slots + row) * state_stride + tile)
    tl.debug_barrier()  # keeps these loads, which take longest, in front
    q, k, v = load_token(qkv + row * qkv_stride, head, NK, NV, DK, DV, INTERPRET)
    keep = tl.exp(tl.load(decay + row * decay_stride + head))
    strength = tl.load(beta + row * beta_stride + head)
    o, _, S = delta_rule(S, q, k, v, keep, strength, INTERPRET)
    tl.store(out + (row * NV + head) * DV + tl.arange(0, DV), o)
    tl.store(state + tl.load(targets + row) * state_stride + tile, S)


@triton.jit
def verify_kernel(
    qkv, qkv_stride, decay, decay_stride, beta, beta_stride, state, state_stride, slots,
    keys, keys_stride, updates, updates_stride, keeps, keeps_stride, out, width,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (B * nv): W tokens in turn, the state stays in registers. The first value head of a key
    head records the key."""
    sequence, head = (tl.program_id(0) // NV).to(tl.int64), tl.program_id(0) % NV
    key_head = head // (NV // NK)
    of_key, of_value = tl.arange(0, DK), tl.arange(0, DV)
    release_dependents(PDL)
    await_inputs(PDL)
    slot = tl.load(slots + sequence)
    S = tl.load(state + slot * state_stride + head * DK * DV + state_tile(DK, DV))
    for place in range(width):
        row = sequence * width + place
        q, k, v = load_token(qkv + row * qkv_stride, head, NK, NV, DK, DV, INTERPRET)
        keep = tl.exp(tl.load(decay + row * decay_stride + head))
        strength = tl.load(beta + row * beta_stride + head)
        o, u, S = delta_rule(S, q, k, v, keep, strength, INTERPRET)
        tl.store(out + (row * NV + head) * DV + of_value, o)
        tl.store(updates + slot * updates_stride + (place * NV + head) * DV + of_value, u)
        tl.store(keeps + slot * keeps_stride + place * NV + head, keep)
        if head % (NV // NK) == 0:
            tl.store(keys + slot * keys_stride + (place * NK + key_head) * DK + of_key, k)


@triton.jit
def fold_kernel(
    state, state_stride, slots, targets, keys, keys_stride, updates, updates_stride,
    keeps, keeps_stride, counts,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (B * nv)."""
    sequence, head = tl.program_id(0) // NV, tl.program_id(0) % NV
    key_head = head // (NV // NK)
    release_dependents(PDL)
    await_inputs(PDL)
    accepted = tl.load(counts + sequence)
    slot, target = tl.load(slots + sequence), tl.load(targets + sequence)
    if (accepted > 0) | (slot != target):
        tile = head * DK * DV + state_tile(DK, DV)
        S = tl.load(state + slot * state_stride + tile)
        for token in range(accepted):
            key = keys + slot * keys_stride + (token * NK + key_head) * DK
            update = updates + slot * updates_stride + (token * NV + head) * DV
            k, u = tl.load(key + tl.arange(0, DK)), tl.load(update + tl.arange(0, DV))
            S = advanced(S, k, u, tl.load(keeps + slot * keeps_stride + token * NV + head))
        tl.store(state + target * state_stride + tile, S)
