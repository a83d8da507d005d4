"""Lossless acceptance of drafts: the tokens that come out follow the target's law exactly.

The rule is that of Leviathan et al., "Fast inference from transformers via speculative decoding",
2023.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import Acceptance, DraftLaw, DrawPurpose
from ninfer_core.ops.reference.law import draw_index
from ninfer_core.ops.reference.rng import uniform


def accept_drafts(
    laws: Tensor,
    drafts: Tensor,
    live: Tensor,
    draft_law: DraftLaw | None,
    seeds: Tensor,
    positions: Tensor,
) -> Acceptance:
    sequences = drafts.shape[0]
    width = laws.shape[0] // sequences
    target = laws.view(sequences, width, -1)
    places = positions.view(sequences, width)
    outcomes = []
    for row, (count, line) in enumerate(zip(live.tolist(), drafts.tolist(), strict=True)):
        seed, place = seeds[row], places[row]
        if draft_law is None:
            outcomes.append(_match(target[row], line[:count], seed, place))
        else:
            q = _dense(draft_law, row, count, target.shape[2])
            outcomes.append(_test(target[row], line[:count], q, seed, place))
    accepted, tokens = torch.tensor(outcomes, dtype=torch.int32).unbind(1)
    return Acceptance(accepted.contiguous(), tokens.contiguous())


def _match(target: Tensor, drafts: list[int], seed: Tensor, positions: Tensor) -> tuple[int, int]:
    """One-hot drafts: draw as plain decoding would; a draft stands while it is what was drawn."""
    for column in range(len(drafts) + 1):
        token = _draw(target[column], seed, positions[column], DrawPurpose.DECODE)
        if column == len(drafts) or token != drafts[column]:
            return column, token
    raise AssertionError("the loop returns at its last column")


def _test(
    target: Tensor, drafts: list[int], q: Tensor, seed: Tensor, positions: Tensor
) -> tuple[int, int]:
    """Drafts drawn from q [K, V]: accept with min(1, p/q), else draw from what q left over."""
    numbers = uniform(seed, positions, DrawPurpose.ACCEPT).tolist()
    for column, draft in enumerate(drafts):
        p = target[column]
        if not numbers[column] * float(q[column, draft]) < float(p[draft]):
            rest = (p - q[column]).clamp_min(0)
            law = rest if float(rest.sum()) > 0 else p
            return column, _draw(law, seed, positions[column], DrawPurpose.CORRECTION)
    last = len(drafts)
    return last, _draw(target[last], seed, positions[last], DrawPurpose.BONUS)


def _draw(law: Tensor, seed: Tensor, position: Tensor, purpose: DrawPurpose) -> int:
    return draw_index(law, float(uniform(seed, position, purpose)))


def _dense(law: DraftLaw, row: int, count: int, vocabulary: int) -> Tensor:
    """The draft law of one sequence, f32[count, V]."""
    ids, probs = law.ids[row, :count].long(), law.probs[row, :count]
    dense = probs.new_zeros(count, vocabulary)
    return dense.scatter_add_(1, ids.clamp_min(0), probs.masked_fill(ids < 0, 0))
