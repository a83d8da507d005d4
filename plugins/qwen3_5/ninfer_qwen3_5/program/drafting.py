"""A draft backend over the Program's state: what it takes in and what it proposes.

Everything here works on tensors and looks at no value on the host.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.contract.speculation import DraftBackend
from ninfer_core.ops.contracts.values import PagedRows
from ninfer_qwen3_5.model.lending import LentPlace
from ninfer_qwen3_5.model.placement import Placement
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.model.text import TextModel

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class DraftRoom:
    """What drafting adds to the layout: ``caches`` attention caches of the target's kind, room for
    records of ``rows`` verified rows, and a hidden row in every state slot."""

    caches: int = 0
    rows: int = 0


NO_DRAFTS = DraftRoom()


@dataclass(frozen=True, slots=True)
class Drafting:
    """A bound backend and the most drafts of a round, fixed at start."""

    backend: DraftBackend
    tokens: int

    @property
    def room(self) -> DraftRoom:
        return DraftRoom(self.backend.caches, self.tokens + 1)


class Drafter:
    """``tokens`` is K. Hidden rows are those after the target's final norm."""

    def __init__(self, drafting: Drafting, model: TextModel, state: ModelState) -> None:
        self.tokens = drafting.tokens
        self._backend = drafting.backend
        self._model = model
        self._state = state

    @property
    def hidden(self) -> Tensor:
        """[S, H]: by state slot, the row of the last token that the state there has seen."""
        assert self._state.hidden is not None
        return self._state.hidden

    def after_chunk(
        self, ids_T: Tensor, residual_TH: Tensor, place: Placement, slot: Tensor
    ) -> None:
        """A chunk ran on the state of ``slot`` i64[1], whose hidden row is still the one before."""
        import torch

        hidden = self._model.hidden(residual_TH)
        before = torch.cat([self.hidden.index_select(0, slot), hidden[:-1]])
        lent = LentPlace.of_chunk(self._model.ops, place)
        self._backend.observe(ids_T, before, self._state.drafted, lent)
        self.hidden.index_copy_(0, slot, hidden[-1:])

    def after_step(
        self, ids_B: Tensor, residual_BH: Tensor, place: Placement, slots: Tensor, targets: Tensor
    ) -> None:
        """One token of each sequence ran, from ``slots`` to ``targets`` i64[B]."""
        self.after_rows(ids_B, self._model.hidden(residual_BH), place, slots)
        self.hidden.index_copy_(0, targets, self._model.hidden(residual_BH))

    def after_rows(self, ids_T: Tensor, hidden_TH: Tensor, place: Placement, slots: Tensor) -> None:
        """T = B * W rows ran, W of each sequence, past the states of ``slots`` i64[B]; the hidden
        rows there stay."""
        import torch

        size, rows = hidden_TH.shape[1], hidden_TH.view(slots.shape[0], -1, hidden_TH.shape[1])
        first = self.hidden.index_select(0, slots).unsqueeze(1)
        before = torch.cat([first, rows[:, :-1]], dim=1).view(-1, size)
        lent = LentPlace.of_rows(self._model.ops, place)
        self._backend.observe(ids_T, before, self._state.drafted, lent)

    def propose(
        self, ids_B: Tensor, hidden_BH: Tensor, columns: Rows[tuple[PagedRows, Tensor]]
    ) -> Tensor:
        """A draft i32[B, n] for each of n ``columns``: rows, and rotary positions i32[3, B].

        ``ids_B`` are the tokens at the first of them, ``hidden_BH`` the target's rows before it.
        """
        places = [
            LentPlace.of_rows(self._model.ops, self._model.place(rows, positions))
            for rows, positions in columns
        ]
        return self._backend.propose(ids_B, hidden_BH, self._state.drafted, places).drafts
