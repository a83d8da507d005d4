"""Lossless acceptance of drafts: the tokens that come out follow the target's law exactly.

The rule is that of Leviathan et al., "Fast inference from transformers via speculative decoding",
2023.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import Acceptance, DraftLaw, DrawPurpose
from ninfer_core.ops.reference.law import draw
from ninfer_core.ops.reference.rng import uniform


def accept_drafts(
    laws: Tensor,
    drafts: Tensor,
    live: Tensor,
    draft_law: DraftLaw | None,
    seeds: Tensor,
    positions: Tensor,
) -> Acceptance:
    target = laws.view(drafts.shape[0], drafts.shape[1] + 1, -1)
    places = positions.view(target.shape[:2])
    if draft_law is None:
        return _match(target, drafts, live, seeds, places)
    return _test(target, drafts, live, _dense(draft_law, target.shape[2]), seeds, places)


def _match(
    target: Tensor, drafts: Tensor, live: Tensor, seeds: Tensor, positions: Tensor
) -> Acceptance:
    """One-hot drafts: draw as plain decoding would; a draft stands while it is what was drawn."""
    drawn = draw(target, uniform(seeds.unsqueeze(1), positions, DrawPurpose.DECODE))
    accepted = _leading(drawn[:, :-1] == drafts, live)
    tokens = drawn.gather(1, accepted.unsqueeze(1)).squeeze(1)
    return Acceptance(accepted.int(), tokens.int())


def _test(
    target: Tensor, drafts: Tensor, live: Tensor, q: Tensor, seeds: Tensor, positions: Tensor
) -> Acceptance:
    """Drafts drawn from q [B, K, V]: accept with min(1, p/q), else draw from what q left over."""
    chosen = drafts.long().unsqueeze(2)
    p_draft, q_draft = (law.gather(2, chosen).squeeze(2) for law in (target[:, :-1], q))
    numbers = uniform(seeds.unsqueeze(1), positions[:, :-1], DrawPurpose.ACCEPT)
    accepted = _leading(numbers * q_draft < p_draft, live)
    everyone = torch.arange(target.shape[0])
    law, place = target[everyone, accepted], positions[everyone, accepted]
    rejected = accepted < live
    rest = (law - q[everyone, accepted.clamp_max(q.shape[1] - 1)]).clamp_min(0)
    left = rejected & (rest.sum(1) > 0)
    tokens = draw(
        torch.where(left.unsqueeze(1), rest, law),
        torch.where(
            rejected,
            uniform(seeds, place, DrawPurpose.CORRECTION),
            uniform(seeds, place, DrawPurpose.BONUS),
        ),
    )
    return Acceptance(accepted.int(), tokens.int())


def _leading(passed: Tensor, live: Tensor) -> Tensor:
    """How many of the first ``live`` columns of bool[B, K] pass before one fails: i64[B]."""
    columns = torch.arange(passed.shape[1])
    return (passed & (columns < live.unsqueeze(1))).long().cumprod(1).sum(1)


def _dense(law: DraftLaw, vocabulary: int) -> Tensor:
    """f32[B, K, V] of a law on its support."""
    dense = law.probs.new_zeros(*law.probs.shape[:2], vocabulary)
    probs = law.probs.masked_fill(law.ids < 0, 0)
    return dense.scatter_add_(2, law.ids.clamp_min(0).long(), probs)
