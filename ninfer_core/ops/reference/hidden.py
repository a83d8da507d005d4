"""Rows at the ends of a forward pass, as compositions of the ops next door."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import Stream, WeightMatrix
from ninfer_core.ops.reference.fused import open_stream
from ninfer_core.ops.reference.linear import embedding
from ninfer_core.ops.reference.norm import rms_norm


def embed_stream(ids: Tensor, table: WeightMatrix, scale: Tensor) -> Stream:
    return open_stream(embedding(ids, table), scale)


def hand_over(
    residual: Tensor,
    scale: Tensor,
    eps: float,
    pool: Tensor,
    slots: Tensor,
    kept: Tensor,
    places: Tensor,
) -> Tensor:
    normed = rms_norm(residual, scale, eps)
    rows = normed.view(slots.shape[0], -1, normed.shape[1])
    before = torch.cat([pool.index_select(0, slots).unsqueeze(1), rows[:, :-1]], 1)
    at = places.long().unsqueeze(1) + torch.arange(rows.shape[1])
    kept.index_copy_(0, at.flatten(), normed)
    return before.view_as(normed)


def draft_inputs(
    ids: Tensor,
    table: WeightMatrix,
    token_scale: Tensor,
    hidden: Tensor,
    hidden_scale: Tensor,
    eps: float,
    inner_scale: Tensor | None = None,
) -> Tensor:
    token = rms_norm(embedding(ids, table), token_scale, eps)
    if inner_scale is not None:
        hidden = rms_norm(hidden, inner_scale, eps)
    return torch.cat([token, rms_norm(hidden, hidden_scale, eps)], 1)
