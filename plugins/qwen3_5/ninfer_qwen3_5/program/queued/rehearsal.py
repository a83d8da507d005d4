"""Every unit's ops called once for no result, so that a backend learns what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.contract.instance import Budget
from ninfer_core.ops.contracts.values import DrawPurpose, TokenMasks
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.queued.chunks import ChunkRun, ChunkRunner
from ninfer_qwen3_5.program.queued.lanes import LaneState
from ninfer_qwen3_5.program.queued.rounds import Part, Rounds
from ninfer_qwen3_5.program.queued.spec_rounds import SpecRounds

if TYPE_CHECKING:
    from torch import Tensor


class Rehearsal:
    """The body that ``ninfer_core.ops.backend.Prepare`` asks for; on the Program's own tensors, so
    that shapes, types and alignments are those of the units to come."""

    def __init__(
        self,
        model: TextModel,
        lanes: LaneState,
        chunks: ChunkRunner,
        rounds: Rounds,
        masks: TokenMasks,
        budget: Budget,
        speculation: SpecRounds | None = None,
    ) -> None:
        self._speculation = speculation
        self._model = model
        self._lanes = lanes
        self._chunks = chunks
        self._rounds = rounds
        self._masks = TokenMasks(masks.words[:1], masks.active[:1])
        self._budget = budget

    def __call__(self) -> None:
        import torch

        with torch.inference_mode():
            for size in range(1, self._budget.max_concurrency + 1):
                self._round(size)
            for count in chunk_sizes(self._budget.prefill_chunk):
                self._draw(self._chunks.rehearse(count, chunk=True))
            self._chunks.rehearse(1, chunk=False)

    def _round(self, size: int) -> None:
        if self._speculation is not None:
            rehearse(self._speculation, size)
        logits = self._rounds.run(size, Part.FORWARD).logits
        for part in (Part.GREEDY, Part.DRAWN, Part.FINISH):
            self._rounds.run(size, part, logits)

    def _draw(self, run: ChunkRun) -> None:
        """Scores of a chunk's rows, and the draw from its last row, on a lane of either parity:
        lane numbers are eight bytes apart, and kernels tell multiples of sixteen from others."""
        model, lanes = self._model, self._lanes
        scored = model.hidden(run.residual[:2])
        model.ops.prompt_logprobs(
            scored, model.parameters.head, model.addressable, self._targets(scored), 1
        )
        logits = model.row_logits(run.residual[-1:])
        model.ops.argmax_rows(logits, model.addressable)
        for row in range(min(2, self._budget.max_concurrency)):
            for masks in (None, self._masks):
                model.ops.draw_rows(
                    logits,
                    model.addressable,
                    lanes.settings,
                    lanes.counts,
                    lanes.index(row),
                    run.stop,
                    DrawPurpose.PREFILL,
                    masks,
                )

    def _targets(self, hidden: Tensor) -> Tensor:
        import torch

        return torch.zeros(hidden.shape[0], dtype=torch.int32, device=hidden.device)


def rehearse(speculation: SpecRounds, size: int) -> None:
    """All bodies of a speculative round of ``size`` rows, and its fold."""
    for width in speculation.widths:
        for part in speculation.parts(width, masked=False):
            speculation.run(size, part, speculation.held(size, width))
        held = speculation.held(size, width)
        for part in speculation.parts(width, masked=True):
            speculation.run(size, part, held)
    for most in speculation.makes:
        speculation.run_drafts(size, most)
    speculation.run_fold(size)
    speculation.run_changes()


def chunk_sizes(chunk: int) -> list[int]:
    """Every power of two up to a chunk and its successor, and the chunk: one count of each size
    class that a kernel may tell apart."""
    powers = [1 << place for place in range(chunk.bit_length())]
    return sorted({min(power + more, chunk) for power in (*powers, chunk) for more in (0, 1)})
