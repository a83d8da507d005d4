"""A draft backend over the Program's state: what it takes in and what it proposes.

Everything here works on tensors and looks at no value on the host.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.contract.draft_costs import DraftCosts
from ninfer_core.contract.speculation import CacheShape, DraftBackend, Proposal, TargetRows
from ninfer_core.ops.contracts.values import PagedRows, SamplingRows
from ninfer_core.ops.drawn_drafts import without_filters
from ninfer_qwen3_5.model.lending import FIRST_COLUMN, LentPlace
from ninfer_qwen3_5.model.placement import Placement
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.model.taps import Taps
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.drawn_drafts import DraftLaws

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class DraftRoom:
    """What drafting adds to the layout: attention ``caches``, room for records of ``rows`` verified
    rows, if ``hidden`` a hidden row in every state slot, and ``taps`` residuals of every row that
    runs. With ``draws`` drafts have laws."""

    caches: tuple[CacheShape, ...] = ()
    rows: int = 0
    hidden: bool = False
    taps: int = 0
    draws: bool = False


NO_DRAFTS = DraftRoom()


@dataclass(frozen=True, slots=True)
class Drafting:
    """A bound backend, the most drafts of a round, fixed at start, what drafts cost, None where
    that is to be measured or presumed, the bytes of its ``weights``, and whether it ``draws``
    drafts at the temperature of their request."""

    backend: DraftBackend
    tokens: int
    costs: DraftCosts | None = None
    weights: int = 0
    draws: bool = False

    @property
    def room(self) -> DraftRoom:
        needs, caches = self.backend.needs(), tuple(self.backend.caches)
        hidden = needs.final_hidden_post_norm
        return DraftRoom(caches, self.tokens + 1, hidden, len(needs.taps), self.draws)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a drafter takes of T rows that the target ran, each only where it needs it: ``before``
    [T, H] the hidden rows before them, ``taps`` [T, n * H]."""

    before: Tensor | None = None
    taps: Tensor | None = None


class Drafter:
    """``tokens`` is K. Hidden rows are those after the target's final norm. ``laws`` are those of
    drafts that were drawn, None where drafts are certain choices."""

    def __init__(
        self,
        drafting: Drafting,
        model: TextModel,
        state: ModelState,
        laws: DraftLaws | None = None,
    ) -> None:
        self.laws = laws
        needs = drafting.backend.needs()
        self.tokens = drafting.tokens
        self.block = drafting.backend.block
        self.needs_hidden = needs.final_hidden_post_norm
        self._taps = needs.taps
        self._first = FIRST_COLUMN if self.needs_hidden else 0
        self._backend = drafting.backend
        self._model = model
        self._state = state

    @property
    def hidden(self) -> Tensor | None:
        """[S, H]: by state slot, the row of the last token that the state there has seen."""
        return self._state.hidden

    def taps(self) -> Taps | None:
        """What a forward pass is to keep."""
        return Taps(self._taps) if self._taps else None

    def seen(
        self,
        residual_TH: Tensor,
        taps: Taps | None,
        slots: Tensor,
        kept: Tensor | None,
        places: Tensor,
    ) -> Seen:
        """What is needed of T = B * W rows that ran, W of each sequence, past the states of
        ``slots`` i64[B]. Hidden rows, where they are needed, go to ``kept`` [N, H] from
        ``places`` [B] on; those of the slots stay unless they are the same."""
        before = None
        if self.hidden is not None:
            assert kept is not None
            model, scale = self._model, self._model.parameters.final_scale
            before = model.ops.hand_over(
                residual_TH, scale, model.config.rms_norm_eps, self.hidden, slots, kept, places
            )
        return Seen(before, None if taps is None else taps.rows)

    def after_chunk(
        self, ids_T: Tensor, residual_TH: Tensor, taps: Taps | None, place: Placement, slot: Tensor
    ) -> None:
        """A chunk ran on the state of ``slot`` i64[1], whose hidden row is still the one before."""
        import torch

        hidden = before = None
        if self.hidden is not None:
            hidden = self._model.hidden(residual_TH)
            before = torch.cat([self.hidden.index_select(0, slot), hidden[:-1]])
        lent = LentPlace.of_chunk(self._model.ops, place)
        rows = TargetRows(before, None if taps is None else taps.rows)
        self._backend.observe(ids_T, rows, self._state.drafted, lent)
        if self.hidden is not None and hidden is not None:
            self.hidden.index_copy_(0, slot, hidden[-1:])

    def after_step(
        self,
        ids_B: Tensor,
        residual_BH: Tensor,
        taps: Taps | None,
        place: Placement,
        slots: Tensor,
        targets: Tensor,
    ) -> None:
        """One token of each sequence ran, from ``slots`` to ``targets`` i64[B]."""
        seen = self.seen(residual_BH, taps, slots, self.hidden, targets)
        self.after_rows(ids_B, seen, place)

    def after_rows(self, ids_T: Tensor, seen: Seen, place: Placement) -> None:
        """Take in rows that ran."""
        lent = LentPlace.of_rows(self._model.ops, place, self._first)
        self._backend.observe(ids_T, TargetRows(seen.before, seen.taps), self._state.drafted, lent)

    def widths(self, wanted: int) -> list[tuple[int, int]]:
        """First column and width, behind a token's own column, of each place that ``wanted`` drafts
        are made at. A block is always K + 1 wide, so that its kernels have one shape."""
        if self.block:
            return [(0, self.tokens + 1)]
        return [(step, 1) for step in range(wanted)]

    def propose(
        self,
        ids_B: Tensor,
        hidden_BH: Tensor | None,
        columns: Rows[tuple[PagedRows, Tensor]],
        settings: SamplingRows | None = None,
    ) -> Proposal:
        """Drafts i32[B, n] at ``columns``: rows as :meth:`widths` says, and their rotary positions
        i32[3, B * W].

        ``ids_B`` are the tokens at the first of them, ``hidden_BH`` the target's rows before it.
        Where drafts are drawn it is by ``settings``.
        """
        places = [
            LentPlace.of_rows(self._model.ops, self._model.place(rows, positions), self._first)
            for rows, positions in columns
        ]
        before, caches = TargetRows(hidden_BH), self._state.drafted
        if self.laws is None or settings is None:
            return self._backend.propose(ids_B, before, caches, places)
        drawing = without_filters(settings)
        made = self._backend.propose(ids_B, before, caches, places, drawing)
        first = columns[0][0]
        self.laws.put(first.table_rows.long(), first.starts, made)
        return made


def live_rows(wanted: Tensor, place: int, *, block: bool) -> Tensor:
    """Live rows i32[B] of the ``place``-th place where ``wanted`` i32[B] drafts are: all of a block
    and its first column, or one of a chain's."""
    if block:
        return (wanted + (wanted > 0)).int()
    return (wanted > place).int()
