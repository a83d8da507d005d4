"""Runs the model over sequences: builds the inputs of a call and chooses its route."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import PagedRows, Stream
from ninfer_qwen3_5.model.routes import ChunkRoute, StepRoute
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.positions import rotary_positions
from ninfer_qwen3_5.program.sequence import Sequence

if TYPE_CHECKING:
    from torch import Tensor


class Executor:
    """Forward passes in place on the shared state; no bookkeeping."""

    def __init__(self, model: TextModel, state: ModelState, tables: Tensor) -> None:
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
        route = ChunkRoute(self.model.ops, place, torch.tensor([sequence.spare.index]))
        return self.model.forward(_ints(tokens), route, self.state).residual

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
        return self.model.forward(ids, route, self.state)

    def _rows(self, sequences: Rows[Sequence], width: int) -> PagedRows:
        import torch

        return PagedRows(
            self._tables,
            _ints([sequence.row for sequence in sequences]),
            _ints([sequence.frontier for sequence in sequences]),
            torch.full((len(sequences),), width, dtype=torch.int32),
            width,
        )


def _ints(values: list[int]) -> Tensor:
    import torch

    return torch.tensor(values, dtype=torch.int32)
