"""The sampling law of a row, and the draw from it.

Both the dense law and the draw start from the same candidates in id order, with the same fp32
probabilities and fp64 sums, so that a token drawn here and one drawn from the dense law agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import DrawPurpose, SamplingRows
from ninfer_core.ops.reference.logprobs import best_first, top_ids
from ninfer_core.ops.reference.rng import uniform


@dataclass(frozen=True, slots=True)
class _Filters:
    temperature: float
    top_k: int
    top_p: float
    min_p: float


def sampling_law(logits: Tensor, rows: SamplingRows) -> Tensor:
    filters = _filters(rows, logits.shape[0])
    law = torch.zeros_like(logits)
    for row, (line, filtering) in enumerate(zip(logits, filters, strict=True)):
        ids, probs = _candidates(line, filtering)
        law[row, ids] = probs.to(law.dtype)
    return law


def sample_tokens(
    logits: Tensor, rows: SamplingRows, positions: Tensor, purpose: DrawPurpose
) -> Tensor:
    filters = _filters(rows, logits.shape[0])
    if all(filtering.temperature <= 0 for filtering in filters):
        return logits.argmax(-1).int()
    width = logits.shape[0] // rows.seeds.shape[0]
    numbers = uniform(rows.seeds.repeat_interleave(width), positions, purpose)
    drawn = []
    for line, filtering, number in zip(logits, filters, numbers, strict=True):
        ids, probs = _candidates(line, filtering)
        drawn.append(int(ids[draw(probs, number)]) if ids.shape[0] else 0)
    return torch.tensor(drawn, dtype=torch.int32)


def draw(weights: Tensor, numbers: Tensor) -> Tensor:
    """First index whose cumulated weight exceeds ``number`` in [0, 1) times the sum: i64[...].

    weights [..., N], numbers [...]. Without mass (all zero, or NaN) it is 0; otherwise an index of
    weight 0 is never drawn.
    """
    sums = weights.double().cumsum(-1)
    targets = numbers.unsqueeze(-1) * sums[..., -1:]
    index = torch.searchsorted(sums, targets, right=True).squeeze(-1)
    return index.masked_fill(index == weights.shape[-1], 0)


def _filters(rows: SamplingRows, count: int) -> list[_Filters]:
    """The filters of each row; those of a sequence repeat over its rows."""
    columns = (rows.temperature, rows.top_k, rows.top_p, rows.min_p)
    settings = zip(*(column.tolist() for column in columns), strict=True)
    width = count // rows.temperature.shape[0]
    return [filters for setting in settings for filters in [_Filters(*setting)] * width]


def _candidates(line: Tensor, filters: _Filters) -> tuple[Tensor, Tensor]:
    """Ids that can be drawn, ascending, and their probabilities; empty without a finite logit."""
    if filters.temperature <= 0:
        best = line.argmax(-1, keepdim=True)
        return best, torch.isfinite(line[best]).float()
    ids = top_ids(line, filters.top_k or line.shape[0])
    ids = ids[line[ids] > float("-inf")]
    if not ids.shape[0]:
        return ids, line[ids]
    kept = line[ids]
    probs = torch.softmax((kept - kept.max()) / filters.temperature, dim=-1)
    keep = probs >= filters.min_p * probs.max()
    if filters.top_p < 1:
        keep &= _nucleus(probs, filters.top_p)
    mass = probs[keep]
    return ids[keep], mass / mass.sum()


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Membership in the shortest prefix by descending probability whose mass reaches top_p."""
    order = best_first(probs, torch.arange(probs.shape[0]))
    sums = probs[order].double().cumsum(0)
    size = 1 + int((sums[:-1] < top_p).sum())
    member = torch.zeros_like(probs, dtype=torch.bool)
    member[order[:size]] = True
    return member
