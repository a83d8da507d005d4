"""Drafts that were drawn: their laws, kept by execution row, and the acceptance by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ninfer_core.contract.speculation import Proposal
from ninfer_core.ops.contracts.values import DraftLaw, DrawPurpose, SamplingRows
from ninfer_core.ops.drawn_drafts import MOST_CANDIDATES
from ninfer_core.ops.table import Ops

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Take = Callable[[str, tuple[int, ...], "torch.dtype"], "Tensor"]
"""Memory for a tensor: name, shape, dtype."""


class DraftLaws:
    """The law of each execution row's last proposal: ``ids`` i32[rows, K, M], ``probs``
    f32[rows, K, M], beside the ``drafts`` i32[rows, K] and the ``starts`` i32[rows] of the token
    that they follow. What verifies drafts runs before the next proposal of its row, unless rounds
    were dropped in between: then the law is another's, and these tell."""

    def __init__(self, rows: int, tokens: int, take: Take) -> None:
        import torch

        shape = (rows, tokens, MOST_CANDIDATES)
        self._ids = take("drafts.ids", shape, torch.int32).fill_(-1)
        self._probs = take("drafts.probs", shape, torch.float32).zero_()
        self._drafts = take("drafts.tokens", shape[:2], torch.int32).fill_(-1)
        self._starts = take("drafts.starts", shape[:1], torch.int32).fill_(-1)

    @staticmethod
    def bytes(rows: int, tokens: int) -> int:
        """An upper bound of what is taken."""
        return 8 * rows * tokens * (MOST_CANDIDATES + 1) + 4 * rows + 4096

    def put(self, rows: Tensor, starts: Tensor, proposal: Proposal) -> None:
        """Keep the law of a proposal for ``rows`` i64[B]. Certain choices have all of theirs."""
        import torch

        drafts, law = proposal.drafts, proposal.q
        if law is None:
            shape = (*drafts.shape, MOST_CANDIDATES)
            ids = drafts.new_full(shape, -1)
            probs = torch.zeros(shape, device=drafts.device)
            ids[:, :, 0], probs[:, :, 0] = drafts, 1.0
            law = DraftLaw(ids, probs)
        count = drafts.shape[1]
        self._ids[:, :count].index_copy_(0, rows, law.ids)
        self._probs[:, :count].index_copy_(0, rows, law.probs)
        self._drafts[:, :count].index_copy_(0, rows, drafts)
        self._starts.index_copy_(0, rows, starts)

    def of(
        self, rows: Tensor, starts: Tensor, drafts: Tensor, live: Tensor
    ) -> tuple[DraftLaw, Tensor]:
        """The law of ``drafts`` i32[B, n] behind tokens at ``starts``, of which ``live`` i32[B] are
        offered, and how many of them are to be tried: none where it is the law of others."""
        import torch

        count = drafts.shape[1]
        kept = self._drafts.index_select(0, rows)[:, :count]
        place = torch.arange(count, device=drafts.device)
        same = ((kept == drafts) | (place >= live.unsqueeze(1))).all(1)
        same &= self._starts.index_select(0, rows) == starts
        law = DraftLaw(
            self._ids.index_select(0, rows)[:, :count],
            self._probs.index_select(0, rows)[:, :count],
        )
        return law, torch.where(same, live, 0)


def accepted_tokens(
    ops: Ops,
    processed: Tensor,
    settings: SamplingRows,
    drafts: Tensor,
    live: Tensor,
    law: DraftLaw,
    positions: Tensor,
) -> Tensor:
    """What each row takes, i32[B * W], with drafts i32[B, W - 1] (-1 is no token) of which ``live``
    i32[B] are offered: the accepted drafts, then a correction or bonus.

    A row behind these has what plain decoding would draw, and so has a sequence without a draft: it
    is drawn alike in whatever company. The row behind a correction counts only where the correction
    is the very draft that it corrects, when rounding left no other token.
    """
    import torch

    tried, (count, most) = drafts.clamp_min(0), drafts.shape
    laws = ops.sampling_law(processed, settings)
    made = ops.accept_drafts(laws, tried, live, law, settings.seeds, positions)
    plain = ops.sample_tokens(processed, settings, positions, DrawPurpose.DECODE)
    place = torch.arange(most + 1, device=drafts.device)
    accepted, offered = made.accepted.unsqueeze(1), live.unsqueeze(1) > 0
    own = (place == accepted) & offered
    tokens = torch.where(own, made.tokens.unsqueeze(1), plain.view(count, most + 1))
    tokens[:, :-1] = torch.where(place[:-1] < accepted, drafts, tokens[:, :-1])
    return tokens.flatten()
