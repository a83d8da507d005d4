"""The gated delta rule token by token: device code of gates, step, verify, fold and fused mixers.

A program holds the state ``[dk, dv]`` of one value head of one sequence in registers. Step, verify
and the mixers share :func:`delta_rule`; verify and fold must leave the bits of steps, so products
and sums that the compiler might contract differently from kernel to kernel are kept apart or fused
by hand.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.conv import (
    convolve,
    load_history,
    load_taps,
    store_history,
    window_row,
)
from ninfer_ops_triton.kernels.lib import await_inputs, narrow, release_dependents, wide

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


@triton.jit
def mixed_channels(h0, h1, h2, new, w0, w1, w2, w3, INTERPRET: tl.constexpr):
    """The convolution of some channels, rounded like the row that they come from."""
    y = convolve(wide(h0), wide(h1), wide(h2), wide(new), w0, w1, w2, w3)
    return wide(narrow(y, new.dtype, INTERPRET))


@triton.jit
def gated_norm(o, z, scales, eps, DV: tl.constexpr, INTERPRET: tl.constexpr):
    """The RMS norm of a head's output, times ``silu(z)``."""
    total = tl.sum(product(o, o, INTERPRET), 0)
    inverse = tl.rsqrt(tl.fma(total, tl.zeros_like(total) + 1.0 / DV, tl.zeros_like(total) + eps))
    return o * inverse * scales * (z * sigmoid(z))


@triton.jit
def mix_kernel(
    stacked, stacked_stride, conv, rate, bias, norm_scale, eps, history, history_stride,
    state, state_stride, slots, targets, out,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    EARLY_STATE: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (B * nv): everything between the projections of one value head of one row.

    Programs of one key head each convolve its queries and keys; the first of them writes their
    history. They may read it at any time meanwhile, hence no target is a slot of the call.
    """
    row, head = (tl.program_id(0) // NV).to(tl.int64), tl.program_id(0) % NV
    key_head = head // (NV // NK)
    COUNT: tl.constexpr = 2 * NK * DK + NV * DV
    of_value = tl.arange(0, DV)
    pair = pair_channels(key_head, NK, DK)
    values = 2 * NK * DK + head * DV + of_value
    tile = head * DK * DV + state_tile(DK, DV)
    release_dependents(PDL)
    # Weights do not change; what earlier kernels write is left alone until they are done.
    p0, p1, p2, p3 = load_taps(conv, pair, COUNT, None)
    v0, v1, v2, v3 = load_taps(conv, values, COUNT, None)
    scales = tl.load(norm_scale + of_value)
    head_rate, head_bias = tl.load(rate + head), tl.load(bias + head)
    if EARLY_STATE:
        slot = tl.load(slots + row)
        S = tl.load(state + slot * state_stride + tile)
    await_inputs(PDL)
    if not EARLY_STATE:
        slot = tl.load(slots + row)
        S = tl.load(state + slot * state_stride + tile)
    tl.debug_barrier()  # keeps these loads, which take longest, in front
    target = tl.load(targets + row)
    mixed = stacked + row * stacked_stride
    past, future = history + slot * history_stride, history + target * history_stride
    p_h0, p_h1, p_h2 = load_history(past, pair, COUNT, None)
    v_h0, v_h1, v_h2 = load_history(past, values, COUNT, None)
    p_new, v_new = tl.load(mixed + pair), tl.load(mixed + values)
    z = wide(tl.load(mixed + COUNT + head * DV + of_value))
    raw_b = wide(tl.load(mixed + COUNT + NV * DV + head))
    raw_a = wide(tl.load(mixed + COUNT + NV * DV + NV + head))
    qk = mixed_channels(p_h0, p_h1, p_h2, p_new, p0, p1, p2, p3, INTERPRET)
    v = mixed_channels(v_h0, v_h1, v_h2, v_new, v0, v1, v2, v3, INTERPRET)
    q, k = normalised_pair(qk, DK, INTERPRET)
    keep = tl.exp(log_decay(raw_a, head_rate, head_bias))
    o, _, S = delta_rule(S, q, k, v, keep, sigmoid(raw_b), INTERPRET)
    tl.store(state + target * state_stride + tile, S)
    store_history(future, values, COUNT, v_h1, v_h2, v_new, None)
    if head % (NV // NK) == 0:
        store_history(future, pair, COUNT, p_h1, p_h2, p_new, None)
    y = gated_norm(o, z, scales, eps, DV, INTERPRET)
    tl.store(out + (row * NV + head) * DV + of_value, narrow(y, out.dtype.element_ty, INTERPRET))


@triton.jit
def raw_token(mixed, pair, values, head, NV: tl.constexpr, DV: tl.constexpr, COUNT: tl.constexpr):
    """What a row of the stacked projection holds for one value head, as stored: the channels
    ``pair`` and ``values``, b and a."""
    gates = mixed + COUNT + NV * DV + head
    return tl.load(mixed + pair), tl.load(mixed + values), tl.load(gates), tl.load(gates + NV)


@triton.jit(do_not_specialize=["width"])
def mix_verify_kernel(
    stacked, stacked_stride, conv, rate, bias, norm_scale, eps, history, history_stride,
    state, state_stride, slots, inputs, inputs_stride, keys, keys_stride, updates, updates_stride,
    keeps, keeps_stride, out, width,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    EARLY_STATE: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (B * nv): :func:`mix_kernel` over W rows in turn, state and history in registers. What
    it would have written is recorded. A row is loaded while the one before it is computed."""
    sequence, head = (tl.program_id(0) // NV).to(tl.int64), tl.program_id(0) % NV
    key_head = head // (NV // NK)
    COUNT: tl.constexpr = 2 * NK * DK + NV * DV
    of_key, of_value = tl.arange(0, DK), tl.arange(0, DV)
    pair = pair_channels(key_head, NK, DK)
    values = 2 * NK * DK + head * DV + of_value
    tile = head * DK * DV + state_tile(DK, DV)
    release_dependents(PDL)
    p0, p1, p2, p3 = load_taps(conv, pair, COUNT, None)
    v0, v1, v2, v3 = load_taps(conv, values, COUNT, None)
    scales = tl.load(norm_scale + of_value)
    head_rate, head_bias = tl.load(rate + head), tl.load(bias + head)
    if EARLY_STATE:
        slot = tl.load(slots + sequence)
        S = tl.load(state + slot * state_stride + tile)
    await_inputs(PDL)
    if not EARLY_STATE:
        slot = tl.load(slots + sequence)
        S = tl.load(state + slot * state_stride + tile)
    tl.debug_barrier()  # keeps these loads, which take longest, in front
    past = history + slot * history_stride
    p_h0, p_h1, p_h2 = load_history(past, pair, COUNT, None)
    v_h0, v_h1, v_h2 = load_history(past, values, COUNT, None)
    row = sequence * width
    mixed = stacked + row * stacked_stride
    p_new, v_new, raw_b, raw_a = raw_token(mixed, pair, values, head, NV, DV, COUNT)
    for place in range(width):
        z = wide(tl.load(mixed + COUNT + head * DV + of_value))
        mixed += tl.where(place + 1 < width, stacked_stride, 0)
        p_next, v_next, next_b, next_a = raw_token(mixed, pair, values, head, NV, DV, COUNT)
        qk = mixed_channels(p_h0, p_h1, p_h2, p_new, p0, p1, p2, p3, INTERPRET)
        v = mixed_channels(v_h0, v_h1, v_h2, v_new, v0, v1, v2, v3, INTERPRET)
        q, k = normalised_pair(qk, DK, INTERPRET)
        keep = tl.exp(log_decay(wide(raw_a), head_rate, head_bias))
        o, u, S = delta_rule(S, q, k, v, keep, sigmoid(wide(raw_b)), INTERPRET)
        y = gated_norm(o, z, scales, eps, DV, INTERPRET)
        place_out = out + ((row + place) * NV + head) * DV
        tl.store(place_out + of_value, narrow(y, out.dtype.element_ty, INTERPRET))
        taken = inputs + slot * inputs_stride + place * COUNT
        tl.store(taken + values, v_new)
        tl.store(updates + slot * updates_stride + (place * NV + head) * DV + of_value, u)
        tl.store(keeps + slot * keeps_stride + place * NV + head, keep)
        if head % (NV // NK) == 0:
            tl.store(taken + pair, p_new)
            tl.store(keys + slot * keys_stride + (place * NK + key_head) * DK + of_key, k)
        p_h0, p_h1, p_h2, p_new = p_h1, p_h2, p_new, p_next
        v_h0, v_h1, v_h2, v_new = v_h1, v_h2, v_new, v_next
        raw_b, raw_a = next_b, next_a


@triton.jit
def fold_layers_kernel(
    history, history_layer, history_stride, state, state_layer, state_stride, slots, targets,
    inputs, inputs_layer, inputs_stride, keys, keys_layer, keys_stride,
    updates, updates_layer, updates_stride, keeps, keeps_layer, keeps_stride, counts,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (nv, B, layers): state of one value head and history of its channels; the first head of
    a key head takes those of queries and keys. No program reads what another one writes."""
    head, sequence, layer = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    key_head = head // (NV // NK)
    COUNT: tl.constexpr = 2 * NK * DK + NV * DV
    of_key, of_value = tl.arange(0, DK), tl.arange(0, DV)
    pair = pair_channels(key_head, NK, DK)
    values = 2 * NK * DK + head * DV + of_value
    tile = head * DK * DV + state_tile(DK, DV)
    release_dependents(PDL)
    await_inputs(PDL)
    accepted = tl.load(counts + sequence)
    slot, target = tl.load(slots + sequence), tl.load(targets + sequence)
    S = tl.load(state + layer * state_layer + slot * state_stride + tile)
    past = history + layer * history_layer + slot * history_stride
    future = history + layer * history_layer + target * history_stride
    taken = inputs + layer * inputs_layer + slot * inputs_stride
    fold_history(past, taken, future, accepted, values, COUNT)
    if head % (NV // NK) == 0:
        fold_history(past, taken, future, accepted, pair, COUNT)
    key = keys + layer * keys_layer + slot * keys_stride + key_head * DK
    update = updates + layer * updates_layer + slot * updates_stride + head * DV
    kept = keeps + layer * keeps_layer + slot * keeps_stride + head
    for token in range(accepted):
        k, u = tl.load(key + token * NK * DK + of_key), tl.load(update + token * NV * DV + of_value)
        S = advanced(S, k, u, tl.load(kept + token * NV))
    tl.debug_barrier()  # as in fold_history
    tl.store(state + layer * state_layer + target * state_stride + tile, S)


@triton.jit
def fold_history(past, taken, future, accepted, channels, COUNT: tl.constexpr):
    """The last three rows of the history ``past`` and ``accepted`` rows of ``taken``."""
    live = channels >= 0
    h0 = window_row(past, taken, COUNT, accepted, channels, COUNT, live)
    h1 = window_row(past, taken, COUNT, accepted + 1, channels, COUNT, live)
    h2 = window_row(past, taken, COUNT, accepted + 2, channels, COUNT, live)
    tl.debug_barrier()  # other threads may still have to read what is overwritten
    store_history(future, channels, COUNT, h0, h1, h2, live)
