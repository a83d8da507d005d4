"""Whole draws of a round: soundness, processing and sampling in one call."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import (
    Drawn,
    DrawPurpose,
    SamplingRows,
    TokenCounts,
    TokenMasks,
)
from ninfer_core.ops.reference.law import sample_tokens
from ninfer_core.ops.reference.logits import nonfinite_rows, process_logits


def argmax_rows(logits: Tensor, addressable: int) -> Drawn:
    broken = nonfinite_rows(logits, addressable)
    best = logits[:, :addressable].argmax(dim=1).to(torch.int32)
    return Drawn(best.masked_fill_(broken, 0), broken)


def draw_rows(
    logits: Tensor,
    addressable: int,
    settings: SamplingRows,
    counts: TokenCounts,
    lanes: Tensor,
    positions: Tensor,
    purpose: DrawPurpose,
    masks: TokenMasks | None = None,
    drafts: Tensor | None = None,
) -> Drawn:
    own = lanes if drafts is None else lanes[:: drafts.shape[1] + 1]
    rows = rows_of_lanes(settings, own)
    processed = process_logits(logits, rows, counts, own, positions, drafts, masks)
    tokens = sample_tokens(processed, rows, positions, purpose)
    broken = nonfinite_rows(logits, addressable)
    return Drawn(tokens.masked_fill(broken, 0), broken)


def rows_of_lanes(settings: SamplingRows, lanes: Tensor) -> SamplingRows:
    """The settings of ``lanes`` i64[T] from one entry per lane."""
    return SamplingRows(
        *(getattr(settings, field.name).index_select(0, lanes) for field in fields(SamplingRows))
    )
