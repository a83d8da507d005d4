"""Causal depthwise convolution of width 4 with SiLU: device code of its four forms.

A history row set is ``[3, C]`` with the oldest row first. Offsets of slots and tokens are 64 bits
wide: a pool of states or a long prompt passes 2^31 elements.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.lib import await_inputs, narrow, release_dependents, wide


@triton.jit
def convolve(x0, x1, x2, x3, w0, w1, w2, w3):
    """``silu(sum_i w_i x_i)`` in fp32. Written as fused multiply-adds, so that every kernel rounds
    alike whatever the compiler would contract."""
    total = tl.fma(w3, x3, tl.fma(w2, x2, tl.fma(w1, x1, w0 * x0)))
    return total / (1.0 + tl.exp(-total))


@triton.jit
def load_taps(weight, channels, count, live):
    """The four taps of some channels."""
    w0 = tl.load(weight + channels, mask=live)
    w1 = tl.load(weight + count + channels, mask=live)
    w2 = tl.load(weight + 2 * count + channels, mask=live)
    w3 = tl.load(weight + 3 * count + channels, mask=live)
    return w0, w1, w2, w3


@triton.jit
def load_history(history, channels, count, live):
    """The three rows of a slot, oldest first, as stored."""
    h0 = tl.load(history + channels, mask=live)
    h1 = tl.load(history + count + channels, mask=live)
    h2 = tl.load(history + 2 * count + channels, mask=live)
    return h0, h1, h2


@triton.jit
def store_history(history, channels, count, h0, h1, h2, live):
    tl.store(history + channels, h0, mask=live)
    tl.store(history + count + channels, h1, mask=live)
    tl.store(history + 2 * count + channels, h2, mask=live)


@triton.jit
def conv_step_kernel(
    x, x_stride, weight, history, history_stride, slots, targets, out, count,
    BLOCK: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (B, channel blocks). A program reads all of its channels' history before it writes it,
    and no other program touches those channels: a target may be the row's own slot."""
    row = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = channels < count
    w0, w1, w2, w3 = load_taps(weight, channels, count, live)
    release_dependents(PDL)
    await_inputs(PDL)
    h0, h1, h2 = load_history(
        history + tl.load(slots + row) * history_stride, channels, count, live
    )
    new = tl.load(x + row * x_stride + channels, mask=live, other=0.0)
    y = convolve(wide(h0), wide(h1), wide(h2), wide(new), w0, w1, w2, w3)
    tl.store(out + row * count + channels, narrow(y, out.dtype.element_ty, INTERPRET), mask=live)
    target = history + tl.load(targets + row) * history_stride
    tl.debug_barrier()  # other threads may still have to read what is overwritten
    store_history(target, channels, count, h1, h2, new, live)


@triton.jit
def window_row(past, rows, row_stride, index, channels, count, live):
    """Row ``index - 3`` of a sequence: below 0 from the history ``past``, else from ``rows``."""
    at = tl.zeros_like(channels) + index  # an interpreter may not splat what a scalar compares to
    old = tl.load(past + index * count + channels, mask=live & (at < 3), other=0.0)
    new = tl.load(rows + (index - 3) * row_stride + channels, mask=live & (at >= 3), other=0.0)
    return tl.where(index < 3, old, new)


@triton.jit
def conv_verify_kernel(
    x, x_stride, weight, history, history_stride, slots, inputs, inputs_stride, out, count, width,
    BLOCK: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (B * W, channel blocks): row ``w`` of a sequence from its history and earlier rows."""
    row = tl.program_id(0).to(tl.int64)
    sequence = row // width
    place = row - sequence * width
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = channels < count
    w0, w1, w2, w3 = load_taps(weight, channels, count, live)
    release_dependents(PDL)
    await_inputs(PDL)
    slot = tl.load(slots + sequence)
    past = history + slot * history_stride
    rows = x + sequence * width * x_stride
    x0 = window_row(past, rows, x_stride, place, channels, count, live)
    x1 = window_row(past, rows, x_stride, place + 1, channels, count, live)
    x2 = window_row(past, rows, x_stride, place + 2, channels, count, live)
    new = tl.load(rows + place * x_stride + channels, mask=live, other=0.0)
    y = convolve(wide(x0), wide(x1), wide(x2), wide(new), w0, w1, w2, w3)
    tl.store(out + row * count + channels, narrow(y, out.dtype.element_ty, INTERPRET), mask=live)
    tl.store(inputs + slot * inputs_stride + place * count + channels, new, mask=live)


@triton.jit
def conv_fold_kernel(
    history, history_stride, slots, targets, inputs, inputs_stride, counts, count,
    BLOCK: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (B, channel blocks): the last three rows of the history and the accepted inputs."""
    sequence = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    release_dependents(PDL)
    await_inputs(PDL)
    accepted = tl.load(counts + sequence)
    slot, target = tl.load(slots + sequence), tl.load(targets + sequence)
    moved = (accepted > 0) | (slot != target)
    live = (channels < count) & ((tl.zeros_like(channels) + moved) > 0)
    past = history + slot * history_stride
    rows = inputs + slot * inputs_stride
    h0 = window_row(past, rows, count, accepted, channels, count, live)
    h1 = window_row(past, rows, count, accepted + 1, channels, count, live)
    h2 = window_row(past, rows, count, accepted + 2, channels, count, live)
    tl.debug_barrier()  # other threads may still have to read what is overwritten
    store_history(history + target * history_stride, channels, count, h0, h1, h2, live)


@triton.jit
def window_tile(past, x, x_stride, index, channels, count, tokens, live):
    """Rows ``index - 3`` [BT] of the only sequence, as [BT, BC] in fp32."""
    old = live[None, :] & (index < 3)[:, None]
    new = live[None, :] & ((index >= 3) & (index < tokens + 3))[:, None]
    place = index.to(tl.int64)[:, None]
    before = tl.load(past + place * count + channels[None, :], mask=old, other=0.0)
    after = tl.load(x + (place - 3) * x_stride + channels[None, :], mask=new, other=0.0)
    return wide(tl.where(old, before, after))


@triton.jit
def conv_chunk_kernel(
    x, x_stride, weight, history, history_stride, slot, out, count, tokens,
    BT: tl.constexpr, BC: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (token blocks, channel blocks). Only the programs of the first token block, which has
    at least three rows, need the old history, so that they may also write the new one."""
    first = tl.program_id(0) * BT
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    live = channels < count
    w0, w1, w2, w3 = load_taps(weight, channels, count, live)
    release_dependents(PDL)
    await_inputs(PDL)
    past = history + tl.load(slot) * history_stride
    places = first + tl.arange(0, BT)
    x0 = window_tile(past, x, x_stride, places, channels, count, tokens, live)
    x1 = window_tile(past, x, x_stride, places + 1, channels, count, tokens, live)
    x2 = window_tile(past, x, x_stride, places + 2, channels, count, tokens, live)
    x3 = window_tile(past, x, x_stride, places + 3, channels, count, tokens, live)
    y = convolve(x0, x1, x2, x3, w0[None, :], w1[None, :], w2[None, :], w3[None, :])
    where = places.to(tl.int64)[:, None] * count + channels[None, :]
    kept = live[None, :] & (places < tokens)[:, None]
    tl.store(out + where, narrow(y, out.dtype.element_ty, INTERPRET), mask=kept)
    if first == 0:
        last = first.to(tl.int64) + tokens
        h0 = window_row(past, x, x_stride, last, channels, count, live)
        h1 = window_row(past, x, x_stride, last + 1, channels, count, live)
        h2 = window_row(past, x, x_stride, last + 2, channels, count, live)
        tl.debug_barrier()  # other threads may still have to read what is overwritten
        store_history(past, channels, count, h0, h1, h2, live)
