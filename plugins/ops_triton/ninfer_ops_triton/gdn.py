"""Convolution, gates and the gated delta rule token by token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import GdnMixer, GdnRecords
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.kernels import conv
from ninfer_ops_triton.kernels import gdn_mix as mix
from ninfer_ops_triton.kernels import gdn_step as steps
from ninfer_ops_triton.launch import cdiv, launch

_CHANNELS = 256
_CHUNK_TILE = (8, 256)
_GATES = 1024
_STATE_WARPS = 8
"""Of programs that hold a head's state in registers: 64 of 128 x 128 fp32 a thread."""
_STATE_REGISTERS = 128
"""A thread, so that two such programs fit a multiprocessor: one loads while the other stores."""


def causal_conv_step(
    x: Tensor, weight: Tensor, history: Tensor, slots: Tensor, targets: Tensor
) -> Tensor:
    rows, count = x.shape
    out = torch.empty((rows, count), dtype=x.dtype, device=x.device)
    launch(
        conv.conv_step_kernel, (rows, cdiv(count, _CHANNELS)),
        x, x.stride(0), weight, history, history.stride(0), slots, targets, out, count,
        dependent=True, BLOCK=_CHANNELS,
    )  # fmt: skip
    return out


def causal_conv_verify(
    x: Tensor, weight: Tensor, history: Tensor, slots: Tensor, records: GdnRecords
) -> Tensor:
    rows, count = x.shape
    out = torch.empty((rows, count), dtype=x.dtype, device=x.device)
    inputs = records.inputs
    launch(
        conv.conv_verify_kernel, (rows, cdiv(count, _CHANNELS)),
        x, x.stride(0), weight, history, history.stride(0), slots, inputs, inputs.stride(0), out,
        count, rows // slots.shape[0],
        dependent=True, BLOCK=_CHANNELS,
    )  # fmt: skip
    return out


def causal_conv_fold(
    history: Tensor,
    slots: Tensor,
    records: GdnRecords,
    counts: Tensor,
    targets: Tensor | None = None,
) -> None:
    channels, inputs = history.shape[2], records.inputs
    launch(
        conv.conv_fold_kernel, (slots.shape[0], cdiv(channels, _CHANNELS)),
        history, history.stride(0), slots, slots if targets is None else targets,
        inputs, inputs.stride(0), counts, channels,
        dependent=True, BLOCK=_CHANNELS,
    )  # fmt: skip


def causal_conv_chunk(x: Tensor, weight: Tensor, history: Tensor, slot: Tensor) -> Tensor:
    tokens, count = x.shape
    out = torch.empty((tokens, count), dtype=x.dtype, device=x.device)
    block_tokens, block_channels = _CHUNK_TILE
    launch(
        conv.conv_chunk_kernel, (cdiv(tokens, block_tokens), cdiv(count, block_channels)),
        x, x.stride(0), weight, history, history.stride(0), slot, out, count, tokens,
        dependent=True, BT=block_tokens, BC=block_channels,
    )  # fmt: skip
    return out


def gdn_gates(a: Tensor, b: Tensor, decay_rate: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    decay = torch.empty(a.shape, dtype=torch.float32, device=a.device)
    beta = torch.empty_like(decay)
    launch(
        steps.gates_kernel, (cdiv(a.numel(), _GATES),),
        a, a.stride(0), b, b.stride(0), decay_rate, dt_bias, decay, beta, a.numel(),
        dependent=True, NV=a.shape[1], BLOCK=_GATES,
    )  # fmt: skip
    return decay, beta


def gdn_step(
    qkv: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    slots: Tensor,
    targets: Tensor,
    key_heads: int,
) -> Tensor:
    sizes = state_sizes(state, key_heads)
    rows, heads, dv = qkv.shape[0], sizes["NV"], sizes["DV"]
    out = torch.empty((rows, heads, dv), dtype=torch.float32, device=qkv.device)
    launch(
        steps.step_kernel, (rows * heads,),
        qkv, qkv.stride(0), decay, decay.stride(0), beta, beta.stride(0),
        state, state.stride(0), slots, targets, out,
        warps=_STATE_WARPS, maxnreg=_STATE_REGISTERS, dependent=True, **sizes,
    )  # fmt: skip
    return out


def gdn_verify(
    qkv: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    slots: Tensor,
    key_heads: int,
    records: GdnRecords,
) -> Tensor:
    sizes = state_sizes(state, key_heads)
    rows, sequences, heads, dv = qkv.shape[0], slots.shape[0], sizes["NV"], sizes["DV"]
    out = torch.empty((rows, heads, dv), dtype=torch.float32, device=qkv.device)
    launch(
        steps.verify_kernel, (sequences * heads,),
        qkv, qkv.stride(0), decay, decay.stride(0), beta, beta.stride(0),
        state, state.stride(0), slots, *_recorded(records), out, rows // sequences,
        warps=_STATE_WARPS, maxnreg=_STATE_REGISTERS, dependent=True, **sizes,
    )  # fmt: skip
    return out


def gdn_fold(
    state: Tensor,
    slots: Tensor,
    records: GdnRecords,
    counts: Tensor,
    targets: Tensor | None = None,
) -> None:
    sizes = state_sizes(state, records.keys.shape[2])
    launch(
        steps.fold_kernel, (slots.shape[0] * sizes["NV"],),
        state, state.stride(0), slots, slots if targets is None else targets,
        *_recorded(records), counts,
        warps=_STATE_WARPS, maxnreg=_STATE_REGISTERS, dependent=True, **sizes,
    )  # fmt: skip


def gdn_mix_step(
    stacked: Tensor,
    mixer: GdnMixer,
    history: Tensor,
    state: Tensor,
    slots: Tensor,
    targets: Tensor,
    settled: bool = False,
) -> Tensor:
    sizes = state_sizes(state, mixer.key_heads)
    rows, heads, dv = stacked.shape[0], sizes["NV"], sizes["DV"]
    out = torch.empty((rows, heads * dv), dtype=stacked.dtype, device=stacked.device)
    launch(
        mix.mix_kernel, (rows * heads,),
        stacked, stacked.stride(0), mixer.conv, mixer.decay_rate, mixer.dt_bias, mixer.norm_scale,
        mixer.eps, history, history.stride(0), state, state.stride(0), slots, targets, out,
        warps=_STATE_WARPS, maxnreg=_STATE_REGISTERS, dependent=True,
        EARLY_STATE=settled, **sizes,
    )  # fmt: skip
    return out


def gdn_mix_verify(
    stacked: Tensor,
    mixer: GdnMixer,
    history: Tensor,
    state: Tensor,
    slots: Tensor,
    records: GdnRecords,
    settled: bool = False,
) -> Tensor:
    sizes = state_sizes(state, mixer.key_heads)
    rows, sequences, heads, dv = stacked.shape[0], slots.shape[0], sizes["NV"], sizes["DV"]
    width, rest = divmod(rows, sequences)
    if rest or not 1 <= width <= records.inputs.shape[1]:
        raise OpError(
            f"stacked has {rows} rows for {sequences} sequences; records hold 1 to "
            f"{records.inputs.shape[1]} of each"
        )
    out = torch.empty((rows, heads * dv), dtype=stacked.dtype, device=stacked.device)
    launch(
        mix.mix_verify_kernel, (sequences * heads,),
        stacked, stacked.stride(0), mixer.conv, mixer.decay_rate, mixer.dt_bias, mixer.norm_scale,
        mixer.eps, history, history.stride(0), state, state.stride(0), slots,
        records.inputs, records.inputs.stride(0), *_recorded(records), out, width,
        warps=_STATE_WARPS, maxnreg=_STATE_REGISTERS, dependent=True,
        EARLY_STATE=settled, **sizes,
    )  # fmt: skip
    return out


def gdn_fold_layers(
    history: Tensor,
    state: Tensor,
    slots: Tensor,
    records: GdnRecords,
    counts: Tensor,
    targets: Tensor,
) -> None:
    layers, sizes = state.shape[0], state_sizes(state[0], records.keys.shape[3])
    pools = records.inputs, records.keys, records.updates, records.keep
    if any(pool.shape[0] != layers for pool in (history, *pools)):
        shapes = [list(pool.shape) for pool in (history, *pools)]
        raise OpError(f"state has {layers} layers; history and records are {shapes}")
    launch(
        mix.fold_layers_kernel, (sizes["NV"], slots.shape[0], layers),
        history, *history.stride()[:2], state, *state.stride()[:2], slots, targets,
        *(x for pool in pools for x in (pool, *pool.stride()[:2])), counts,
        warps=_STATE_WARPS, maxnreg=_STATE_REGISTERS, dependent=True, **sizes,
    )  # fmt: skip


def state_sizes(state: Tensor, key_heads: int) -> dict[str, Any]:
    """The sizes that kernels are compiled for, from state f32[S, nv, dk, dv].

    Raises :class:`OpError` where dk or dv is no power of two, or nv no multiple of nk.
    """
    _, heads, dk, dv = state.shape
    for name, size in (("key_size", dk), ("value_size", dv)):
        if size & (size - 1):
            raise OpError(f"{name} is {size}; the Triton delta rule takes powers of two")
    if heads % key_heads:
        raise OpError(f"value_heads {heads} is no multiple of key_heads {key_heads}")
    return {"NK": key_heads, "NV": heads, "DK": dk, "DV": dv}


def _recorded(records: GdnRecords) -> tuple[Any, ...]:
    """Keys, updates and keep, each followed by its stride from slot to slot."""
    pools = (records.keys, records.updates, records.keep)
    return tuple(x for pool in pools for x in (pool, pool.stride(0)))


OPS: dict[str, Callable[..., Any]] = {
    "causal_conv_step": causal_conv_step,
    "causal_conv_verify": causal_conv_verify,
    "causal_conv_fold": causal_conv_fold,
    "causal_conv_chunk": causal_conv_chunk,
    "gdn_gates": gdn_gates,
    "gdn_step": gdn_step,
    "gdn_verify": gdn_verify,
    "gdn_fold": gdn_fold,
    "gdn_mix_step": gdn_mix_step,
    "gdn_mix_verify": gdn_mix_verify,
    "gdn_fold_layers": gdn_fold_layers,
}
