"""Raw logits to processed logits: penalties, bias, bans, masks."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import SamplingRows, TokenCounts, TokenMasks


def nonfinite_rows(logits: Tensor, addressable: int) -> Tensor:
    return ~torch.isfinite(logits[:, :addressable]).all(-1)


def process_logits(
    logits: Tensor,
    rows: SamplingRows,
    counts: TokenCounts,
    lanes: Tensor,
    positions: Tensor,
    drafts: Tensor | None = None,
    masks: TokenMasks | None = None,
) -> Tensor:
    width = logits.shape[0] // lanes.shape[0]
    penalised = _penalised(rows)
    biased = (rows.bias_ids >= 0).any(-1).tolist()
    banned = _banned(rows, positions, width)
    masked = masks.active.tolist() if masks is not None else [False] * logits.shape[0]
    if not (any(penalised) or any(biased) or any(banned) or any(masked)):
        return logits
    processed = logits.clone()
    for row, lane in enumerate(lanes.repeat_interleave(width).tolist()):
        sequence, column = divmod(row, width)
        line = processed[row]
        if penalised[sequence]:
            earlier = None if drafts is None else drafts[sequence, :column]
            _penalise(line, rows, sequence, counts, lane, earlier)
        if biased[sequence]:
            ids = rows.bias_ids[sequence]
            line.index_add_(0, ids[ids >= 0], rows.bias[sequence][ids >= 0])
        if banned[row]:
            ids = rows.banned_ids[sequence]
            line.index_fill_(0, ids[ids >= 0].long(), float("-inf"))
        if masks is not None and masked[row]:
            line.masked_fill_(~allowed_tokens(masks.words[row], line.shape[0]), float("-inf"))
    return processed


def count_tokens(counts: TokenCounts, lanes: Tensor, tokens: Tensor, accepted: Tensor) -> None:
    for lane, line, taken in zip(lanes.tolist(), tokens, accepted.tolist(), strict=True):
        ids = line[:taken]
        counts.generated[lane].index_add_(0, ids, torch.ones_like(ids))


def allowed_tokens(words: Tensor, vocabulary: int) -> Tensor:
    """Bits of i32[ceil(V/32)] words as bool[V]."""
    bits = (words.unsqueeze(1) >> torch.arange(32, dtype=torch.int32)) & 1
    return bits.flatten()[:vocabulary].bool()


def _penalised(rows: SamplingRows) -> list[bool]:
    settings = zip(
        rows.presence.tolist(), rows.frequency.tolist(), rows.repetition.tolist(), strict=True
    )
    return [setting != (0.0, 0.0, 1.0) for setting in settings]


def _banned(rows: SamplingRows, positions: Tensor, width: int) -> list[bool]:
    if not rows.banned_ids.shape[1]:
        return [False] * positions.shape[0]
    below = positions.view(-1, width) < rows.banned_before.unsqueeze(1)
    return below.flatten().tolist()


def _penalise(
    line: Tensor,
    rows: SamplingRows,
    sequence: int,
    counts: TokenCounts,
    lane: int,
    earlier: Tensor | None,
) -> None:
    count = counts.generated[lane]
    if earlier is not None and earlier.shape[0]:
        ids = earlier[earlier >= 0]
        count = count.index_add(0, ids, torch.ones_like(ids))
    generated = count > 0
    repetition = rows.repetition[sequence]
    seen = generated | counts.prompt[lane]
    line.copy_(line.where(~seen, torch.where(line > 0, line / repetition, line * repetition)))
    line -= rows.presence[sequence] * generated + rows.frequency[sequence] * count
