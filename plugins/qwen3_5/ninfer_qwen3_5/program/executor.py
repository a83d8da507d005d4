"""Runs the model over sequences: builds the inputs of a call and chooses its route."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import PagedRows
from ninfer_qwen3_5.model.routes import ChunkRoute, VerifyRoute, fold
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.sequence import Sequence

if TYPE_CHECKING:
    from torch import Tensor


class Executor:
    """Forward passes in place on the shared state; no bookkeeping."""

    def __init__(self, model: TextModel, state: ModelState, tables: Tensor) -> None:
        self.model = model
        self.state = state
        self._tables = tables

    def chunk(self, sequence: Sequence, stop: int, slot: int, tokens: list[int]) -> Tensor:
        """Run ``tokens``, which stand at the frontier up to ``stop``, on the state in ``slot``.

        Returns their normed hidden rows [n, H].
        """
        import torch

        start = sequence.frontier
        rows = self._rows([sequence], stop - start)
        place = self.model.place(rows, _positions(sequence, start, stop))
        route = ChunkRoute(self.model.ops, place, torch.tensor([slot]))
        ids = torch.tensor(tokens, dtype=torch.int32)
        return self.model.forward(ids, route, self.state)

    def verify(self, sequences: Rows[Sequence]) -> Tensor:
        """Run the one ledger token past each frontier; leaves records. Returns [B, H]."""
        import torch

        rows = self._rows(sequences, 1)
        logical = [s.frontier + s.request.prepared.rope_delta for s in sequences]
        positions = torch.tensor([logical] * 3, dtype=torch.int32)
        slots = torch.tensor([sequence.slot.index for sequence in sequences])
        route = VerifyRoute(self.model.ops, self.model.place(rows, positions), slots)
        tokens = [s.tokens(s.frontier, s.frontier + 1)[0] for s in sequences]
        ids = torch.tensor(tokens, dtype=torch.int32)
        return self.model.forward(ids, route, self.state)

    def fold(self, sequences: Rows[Sequence]) -> None:
        """Take committed records into the states, so that each stands at its frontier."""
        import torch

        waiting = [sequence for sequence in sequences if sequence.unfolded]
        if not waiting:
            return
        slots = torch.tensor([sequence.slot.index for sequence in waiting])
        counts = torch.tensor([s.unfolded for s in waiting], dtype=torch.int32)
        fold(self.model.ops, self.state, slots, counts)
        for sequence in waiting:
            sequence.unfolded = 0

    def _rows(self, sequences: Rows[Sequence], width: int) -> PagedRows:
        import torch

        return PagedRows(
            self._tables,
            _ints([sequence.row for sequence in sequences]),
            _ints([sequence.frontier for sequence in sequences]),
            torch.full((len(sequences),), width, dtype=torch.int32),
            width,
        )


def _positions(sequence: Sequence, start: int, stop: int) -> Tensor:
    """Rotary positions i32[3, n]: the prompt's own, then logical position plus its delta."""
    import torch

    prepared = sequence.request.prepared
    own = prepared.positions
    if own is None or start >= prepared.length:
        line = torch.arange(start, stop, dtype=torch.int32) + prepared.rope_delta
        return line.expand(3, -1)
    inside = torch.from_numpy(own[:, start:stop])
    beyond = torch.arange(max(start, prepared.length), stop, dtype=torch.int32)
    return torch.cat([inside, (beyond + prepared.rope_delta).expand(3, -1)], dim=1)


def _ints(values: list[int]) -> Tensor:
    import torch

    return torch.tensor(values, dtype=torch.int32)
