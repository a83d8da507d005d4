"""Everything between the projections of a gated delta net in one kernel, a value head a program:
one token, some in turn, and the fold of all layers.

A row of the stacked projection holds q|k|v (COUNT channels), z, b and a.
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
from ninfer_ops_triton.kernels.gdn_rule import (
    advanced,
    delta_rule,
    log_decay,
    normalised_pair,
    pair_channels,
    product,
    sigmoid,
    state_tile,
)
from ninfer_ops_triton.kernels.lib import await_inputs, narrow, release_dependents, wide


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
def head_channels(head, NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr):
    """Channels [2, DK] of the query and key that a value head takes, and those of its values."""
    return pair_channels(head // (NV // NK), NK, DK), 2 * NK * DK + head * DV + tl.arange(0, DV)


@triton.jit
def head_weights(conv, rate, bias, norm_scale, head, pair, values, COUNT: tl.constexpr,
                 DV: tl.constexpr):  # fmt: skip
    """Taps of both kinds of channels, the norm's scales, and the head's decay rate and bias. They
    do not change: what earlier kernels write is left alone until they are done."""
    p0, p1, p2, p3 = load_taps(conv, pair, COUNT, None)
    v0, v1, v2, v3 = load_taps(conv, values, COUNT, None)
    scales = tl.load(norm_scale + tl.arange(0, DV))
    return p0, p1, p2, p3, v0, v1, v2, v3, scales, tl.load(rate + head), tl.load(bias + head)


@triton.jit
def head_memory(
    history, history_stride, state, state_stride, slots, sequence, head, pair, values,
    COUNT: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, EARLY_STATE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A sequence's slot, the head's state there and the history of its channels; waits for earlier
    kernels, with EARLY_STATE behind these loads. Then dependents may come: not before, or those of
    products would take room from the kernel before this one."""
    if not EARLY_STATE:
        await_inputs(PDL)
        release_dependents(PDL)
    slot = tl.load(slots + sequence)
    S = tl.load(state + slot * state_stride + head * DK * DV + state_tile(DK, DV))
    past = history + slot * history_stride
    p_h0, p_h1, p_h2 = load_history(past, pair, COUNT, None)
    v_h0, v_h1, v_h2 = load_history(past, values, COUNT, None)
    if EARLY_STATE:
        await_inputs(PDL)
        release_dependents(PDL)
    tl.debug_barrier()  # keeps these loads, which take longest, in front
    return slot, S, p_h0, p_h1, p_h2, v_h0, v_h1, v_h2


@triton.jit
def raw_token(mixed, pair, values, head, NV: tl.constexpr, DV: tl.constexpr, COUNT: tl.constexpr):
    """What a row of the stacked projection holds for one value head, as stored: the channels
    ``pair`` and ``values``, b and a."""
    gates = mixed + COUNT + NV * DV + head
    return tl.load(mixed + pair), tl.load(mixed + values), tl.load(gates), tl.load(gates + NV)


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
    COUNT: tl.constexpr = 2 * NK * DK + NV * DV
    pair, values = head_channels(head, NK, NV, DK, DV)
    p0, p1, p2, p3, v0, v1, v2, v3, scales, head_rate, head_bias = head_weights(
        conv, rate, bias, norm_scale, head, pair, values, COUNT, DV
    )
    _, S, p_h0, p_h1, p_h2, v_h0, v_h1, v_h2 = head_memory(
        history, history_stride, state, state_stride, slots, row, head, pair, values, COUNT, DK,
        DV, EARLY_STATE, PDL,
    )  # fmt: skip
    mixed = stacked + row * stacked_stride
    p_new, v_new, raw_b, raw_a = raw_token(mixed, pair, values, head, NV, DV, COUNT)
    z = wide(tl.load(mixed + COUNT + head * DV + tl.arange(0, DV)))
    qk = mixed_channels(p_h0, p_h1, p_h2, p_new, p0, p1, p2, p3, INTERPRET)
    v = mixed_channels(v_h0, v_h1, v_h2, v_new, v0, v1, v2, v3, INTERPRET)
    target = tl.load(targets + row)
    future = history + target * history_stride
    q, k = normalised_pair(qk, DK, INTERPRET)
    keep = tl.exp(log_decay(wide(raw_a), head_rate, head_bias))
    o, _, S = delta_rule(S, q, k, v, keep, sigmoid(wide(raw_b)), INTERPRET)
    tl.store(state + target * state_stride + head * DK * DV + state_tile(DK, DV), S)
    store_history(future, values, COUNT, v_h1, v_h2, v_new, None)
    if head % (NV // NK) == 0:
        store_history(future, pair, COUNT, p_h1, p_h2, p_new, None)
    y = narrow(gated_norm(o, z, scales, eps, DV, INTERPRET), out.dtype.element_ty, INTERPRET)
    tl.store(out + (row * NV + head) * DV + tl.arange(0, DV), y)


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
    pair, values = head_channels(head, NK, NV, DK, DV)
    p0, p1, p2, p3, v0, v1, v2, v3, scales, head_rate, head_bias = head_weights(
        conv, rate, bias, norm_scale, head, pair, values, COUNT, DV
    )
    slot, S, p_h0, p_h1, p_h2, v_h0, v_h1, v_h2 = head_memory(
        history, history_stride, state, state_stride, slots, sequence, head, pair, values, COUNT,
        DK, DV, EARLY_STATE, PDL,
    )  # fmt: skip
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
