"""Runs the model over sequences: builds the inputs of a call and chooses its route."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import PagedRows, Stream
from ninfer_qwen3_5.model.placement import Placement
from ninfer_qwen3_5.model.routes import ChunkRoute, StepRoute, VerifyRoute
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.model.taps import Taps
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.drafting import Drafter, Seen
from ninfer_qwen3_5.program.positions import rotary_positions
from ninfer_qwen3_5.program.sequence import Sequence

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Verifying:
    """Rows that ran and are not judged: W of each of B sequences. ``ids`` i32[B * W], ``logits``
    f32[B * W, V], what the drafter takes of them, ``hidden`` [B * W, H] where it takes such."""

    place: Placement
    ids: Tensor
    logits: Tensor
    seen: Seen
    hidden: Tensor | None


class Executor:
    """Forward passes in place on the shared state; no bookkeeping."""

    def __init__(
        self,
        model: TextModel,
        state: ModelState,
        tables: Tensor,
        drafter: Drafter | None = None,
    ) -> None:
        self.drafter = drafter
        self.model = model
        self.state = state
        self._tables = tables

    def chunk(self, sequence: Sequence, tokens: list[int]) -> Tensor:
        """Run ``tokens`` past the frontier on the state in the spare slot.

        Returns their residual rows [n, H].
        """
        import torch

        start, stop = sequence.frontier, sequence.frontier + len(tokens)
        rows = self._rows([sequence], stop - start)
        place = self.model.place(rows, rotary_positions(sequence, start, stop))
        slot, ids = torch.tensor([sequence.spare.index]), _ints(tokens)
        route = ChunkRoute(self.model.ops, place, slot)
        taps = self._taps()
        residual = self.model.forward(ids, route, self.state, taps).residual
        if self.drafter is not None:
            self.drafter.after_chunk(ids, residual, taps, place, slot)
        return residual

    def align(self, sequences: Rows[Sequence]) -> None:
        """Copy states so that all lie on the side of their slot pair where most of them lie."""
        above = [sequence for sequence in sequences if sequence.slot.index > sequence.spare.index]
        below = [sequence for sequence in sequences if sequence.slot.index < sequence.spare.index]
        for sequence in min(above, below, key=len):
            self.state.copy_slot(sequence.slot.index, sequence.spare.index)
            sequence.swap()

    def step(self, sequences: Rows[Sequence]) -> Stream:
        """Run the one ledger token past each frontier, from slot to spare."""
        import torch

        rows = self._rows(sequences, 1)
        logical = [s.frontier + s.request.prepared.rope_delta for s in sequences]
        positions = torch.tensor([logical] * 3, dtype=torch.int32)
        route = StepRoute(
            self.model.ops,
            self.model.place(rows, positions),
            torch.tensor([sequence.slot.index for sequence in sequences]),
            torch.tensor([sequence.spare.index for sequence in sequences]),
        )
        ids = _ints([s.tokens(s.frontier, s.frontier + 1)[0] for s in sequences])
        taps = self._taps()
        stream = self.model.forward(ids, route, self.state, taps)
        if self.drafter is not None:
            self.drafter.after_step(
                ids, stream.residual, taps, route.place, route.slots, route.targets
            )
        return stream

    def verify(self, sequences: Rows[Sequence], drafts: Rows[tuple[int, ...]]) -> Verifying:
        """Run the one ledger token past each frontier and the drafts behind it; their states
        stay, and records tell what would become of them."""
        import torch

        assert self.drafter is not None
        model, live = self.model, [1 + len(row) for row in drafts]
        width = max(live)
        rows = self._rows(sequences, width, live)
        starts = rows.starts + _ints([s.rope_delta for s in sequences])
        positions = (starts.unsqueeze(1) + torch.arange(width, dtype=torch.int32)).flatten()
        place = model.place(rows, positions.expand(3, -1))
        slots = torch.tensor([sequence.slot.index for sequence in sequences])
        padded = [
            [sequence.waiting_token, *row, *[0] * (width - 1 - len(row))]
            for sequence, row in zip(sequences, drafts, strict=True)
        ]
        ids = torch.tensor(padded, dtype=torch.int32).flatten()
        taps, route = self._taps(), VerifyRoute(model.ops, place, slots, slots)
        stream = model.forward(ids, route, self.state, taps)
        hidden = None
        if self.drafter.hidden is not None:
            hidden = torch.empty_like(stream.residual)
        first = torch.arange(0, ids.shape[0], width)
        seen = self.drafter.seen(stream.residual, taps, slots, hidden, first)
        return Verifying(place, ids, model.logits(stream), seen, hidden)

    def columns(
        self, sequences: Rows[Sequence], starts: list[int], live: Tensor, width: int
    ) -> tuple[PagedRows, Tensor]:
        """``width`` rows of each sequence from any column on, and rotary positions
        i32[3, B * W]."""
        import torch

        lanes = _ints([sequence.row for sequence in sequences])
        rows = PagedRows(self._tables, lanes, _ints(starts), live, width)
        logical = rows.starts + _ints([sequence.rope_delta for sequence in sequences])
        places = logical.unsqueeze(1) + torch.arange(width, dtype=torch.int32)
        return rows, places.flatten().expand(3, -1)

    def _taps(self) -> Taps | None:
        return None if self.drafter is None else self.drafter.taps()

    def _rows(
        self, sequences: Rows[Sequence], width: int, live: list[int] | None = None
    ) -> PagedRows:
        return PagedRows(
            self._tables,
            _ints([sequence.row for sequence in sequences]),
            _ints([sequence.frontier for sequence in sequences]),
            _ints(live or [width] * len(sequences)),
            width,
        )


def _ints(values: list[int]) -> Tensor:
    import torch

    return torch.tensor(values, dtype=torch.int32)
