"""The causal depthwise convolution of width 4, in its four forms around one kernel."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from ninfer_core.ops.contracts.values import CONV_HISTORY, GdnRecords
from ninfer_core.ops.reference.lanes import whole_lanes, widen


def causal_conv_chunk(x: Tensor, weight: Tensor, history: Tensor, slot: Tensor) -> Tensor:
    window = torch.cat([history.index_select(0, slot), x.unsqueeze(0)], dim=1)
    history.index_copy_(0, slot, window[:, -CONV_HISTORY:])
    return _convolve(window, weight)


def causal_conv_step(
    x: Tensor, weight: Tensor, history: Tensor, slots: Tensor, targets: Tensor
) -> Tensor:
    window = torch.cat([history.index_select(0, slots), x.unsqueeze(1)], dim=1)
    history.index_copy_(0, targets, window[:, 1:])
    return _convolve(window, weight)


def causal_conv_verify(
    x: Tensor, weight: Tensor, history: Tensor, slots: Tensor, records: GdnRecords
) -> Tensor:
    inputs = x.reshape(slots.shape[0], -1, x.shape[1])
    records.inputs[:, : inputs.shape[1]].index_copy_(0, slots, inputs)
    return _convolve(torch.cat([history.index_select(0, slots), inputs], dim=1), weight)


def causal_conv_fold(
    history: Tensor,
    slots: Tensor,
    records: GdnRecords,
    counts: Tensor,
    targets: Tensor | None = None,
) -> None:
    places = slots if targets is None else targets
    listed = zip(slots.tolist(), counts.tolist(), places.tolist(), strict=True)
    for slot, count, target in listed:
        window = torch.cat([history[slot], records.inputs[slot, :count]])
        history[target] = window[-CONV_HISTORY:]


def _convolve(window: Tensor, weight: Tensor) -> Tensor:
    """``window`` [B, 3 + W, C], ``weight`` [4, C]: the SiLU of W outputs each, [B * W, C]."""
    taps = widen(window).unfold(1, CONV_HISTORY + 1, 1).transpose(2, 3)
    total = (taps * weight).sum(2).flatten(0, 1)
    return whole_lanes(silu, total).to(window.dtype)
