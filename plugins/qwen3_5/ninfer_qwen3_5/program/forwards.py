"""What each kind of unit computes, as one call per unit under inference mode."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_qwen3_5.program.executor import Executor
from ninfer_qwen3_5.program.sampler import token_logprobs
from ninfer_qwen3_5.program.sequence import Sequence
from ninfer_qwen3_5.program.work import RowWork

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ChunkOutcome:
    """The last residual row [1, H] of a chunk and the prompt log-probabilities it gave."""

    last_residual: Tensor
    scored: tuple[TokenLogprobs, ...]


class Forwards:
    """Runs units on rows whose pages are mapped; commits nothing."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._model = executor.model

    def chunk(self, work: RowWork) -> ChunkOutcome:
        """Prompt tokens from the frontier on, their state built in the staging slot."""
        import torch

        with torch.inference_mode():
            sequence = work.sequence
            start, stop = sequence.frontier, sequence.frontier + work.executed
            residual = self._chunk(sequence, sequence.tokens(start, stop))
            return ChunkOutcome(residual[-1:], self._score(sequence, residual, start, stop))

    def replay(self, work: RowWork) -> tuple[TokenLogprobs, ...]:
        """Accepted tokens again, by the route that they took first, so that the state comes out
        equal to the bit."""
        import torch

        with torch.inference_mode():
            sequence, start = work.sequence, work.sequence.frontier
            if work.stepped:
                self._step_through(sequence, work.executed)
            else:
                self._chunk(sequence, sequence.tokens(start, start + work.executed))
        return ()

    def decode(self, works: Rows[RowWork]) -> Tensor:
        """One token of every row; returns logits f32[B, V].

        Rows run in the order of their execution rows, with their states in the same half of the
        slots: then the states of a batch are one stretch of memory, read and written as such.
        """
        import torch

        with torch.inference_mode():
            sequences = [work.sequence for work in works]
            order = sorted(range(len(sequences)), key=lambda row: sequences[row].row)
            ordered = [sequences[row] for row in order]
            self._executor.align(ordered)
            logits = self._model.logits(self._executor.step(ordered))
            if order == list(range(len(order))):
                return logits
            return logits[torch.tensor(order).argsort()]

    def forced(self, works: Rows[RowWork], tokens: Rows[tuple[int, ...]]) -> None:
        """The waiting token of each row, then its forced ones but the last, which waits next."""
        import torch

        with torch.inference_mode():
            for work, forced in zip(works, tokens, strict=True):
                sequence = work.sequence
                waiting = sequence.tokens(sequence.frontier, sequence.ledger_length)
                run = [*waiting, *forced][: work.executed]
                if len(waiting) != 1 or len(run) != work.executed:
                    raise EngineFailure("a control unit needs exactly one token not yet run")
                self._chunk(sequence, run)

    def logits(self, residual: Tensor) -> Tensor:
        """f32[T, V] of residual rows."""
        import torch

        with torch.inference_mode():
            return self._model.row_logits(residual)

    def _chunk(self, sequence: Sequence, tokens: list[int]) -> Tensor:
        self._executor.state.copy_slot(sequence.slot.index, sequence.spare.index)
        return self._executor.chunk(sequence, tokens)

    def _step_through(self, sequence: Sequence, count: int) -> None:
        """``count`` steps; like every unit, the last one leaves its outcome in the spare slot."""
        first = sequence.frontier
        for step in range(count):
            if step:
                sequence.swap()
            sequence.frontier = first + step
            self._executor.step([sequence])
        sequence.frontier = first

    def _score(
        self, sequence: Sequence, residual: Tensor, start: int, stop: int
    ) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of prompt tokens ``start + 1 .. stop`` (none past the prompt)."""
        top = sequence.request.rules.prompt_logprobs
        count = min(stop, sequence.prompt_length - 1) - start
        if top is None or count <= 0:
            return ()
        import torch

        targets = sequence.tokens(start + 1, start + 1 + count)
        rows = self._model.ops.prompt_logprobs(
            self._model.hidden(residual[:count]),
            self._model.parameters.head,
            self._model.addressable,
            torch.tensor(targets, dtype=torch.int32),
            top,
        )
        return tuple(token_logprobs(rows, targets, [top] * count))
