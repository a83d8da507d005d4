"""Drafts that are drawn from a drafter's candidates, and the law that they are drawn from.

A law is kept as ``Candidates`` whose values are probabilities, M of them for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import Candidates, DraftLaw, DrawPurpose, SamplingRows

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.ops.table import Ops

DRAWN_FROM = 16
"""Tokens that a draft is drawn from, unless its drafter knows better: the likeliest. For the others
q is 0, which costs acceptance and never exactness."""

MOST_CANDIDATES = 64
"""What a law has room for, as many as ``DraftCandidates`` finds."""


def without_filters(settings: SamplingRows) -> SamplingRows:
    """Temperatures and seeds of ``settings``: a draft's law has no other part of them, since
    acceptance sets right whatever it lacks."""
    return replace(
        settings,
        top_k=settings.top_k.new_zeros(settings.top_k.shape),
        top_p=settings.top_p.new_ones(settings.top_p.shape),
        min_p=settings.min_p.new_zeros(settings.min_p.shape),
    )


def candidates_of(ops: Ops, logits: Tensor, addressable: int) -> Candidates:
    """What a draft of each row is drawn from."""
    return ops.draft_candidates(logits, min(DRAWN_FROM, addressable), addressable)


def draw(
    ops: Ops, candidates: Candidates, drawing: SamplingRows, positions: Tensor
) -> tuple[Tensor, Candidates]:
    """One of each row's candidates by ``softmax(values / temperature)``, the largest value where
    the temperature is 0: tokens i32[T], and the law.

    positions i32[T] are those of the tokens that are drafted. T is a multiple of the sequences of
    ``drawing``, whose rows follow each other.
    """
    chosen = ops.sample_tokens(candidates.values, drawing, positions, DrawPurpose.DRAFT)
    tokens = candidates.ids.gather(1, chosen.long().unsqueeze(1)).squeeze(1)
    return tokens, Candidates(candidates.ids, ops.sampling_law(candidates.values, drawing))


def stacked_law(places: Sequence[Candidates]) -> DraftLaw:
    """The law of K places, each of B rows, one for each sequence."""
    import torch

    ids = torch.stack([place.ids for place in places], dim=1)
    return _filled(ids, torch.stack([place.values for place in places], dim=1))


def law_of(rows: Candidates, sequences: int) -> DraftLaw:
    """The law of B * K rows, those of a sequence following each other."""
    shape = (sequences, -1, rows.ids.shape[1])
    return _filled(rows.ids.view(shape), rows.values.view(shape))


def _filled(ids: Tensor, probs: Tensor) -> DraftLaw:
    """With as many candidates as there may be; those that are missing are no tokens."""
    from torch.nn.functional import pad

    missing = MOST_CANDIDATES - ids.shape[2]
    return DraftLaw(pad(ids, (0, missing), value=-1), pad(probs, (0, missing)))
