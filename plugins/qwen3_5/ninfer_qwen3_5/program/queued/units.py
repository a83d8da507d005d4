"""Units on a device with a queue (``program.units.Units``)."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.contract.units import Launched, PendingBatch, UnitKind
from ninfer_core.device.errors import DeviceLost
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.queued.chunks import ChunkRun, ChunkRunner
from ninfer_qwen3_5.program.queued.decode import RoundLaunch, RoundLauncher
from ninfer_qwen3_5.program.queued.draw import PromptLaunch
from ninfer_qwen3_5.program.queued.lanes import LaneState
from ninfer_qwen3_5.program.queued.launches import ChunkLaunch, ForcedLaunch
from ninfer_qwen3_5.program.queued.masks import MaskRing
from ninfer_qwen3_5.program.queued.scores import PromptScores
from ninfer_qwen3_5.program.queued.spec_launch import SpecLauncher
from ninfer_qwen3_5.program.sequence import Sequence
from ninfer_qwen3_5.program.units import UnitRow, decide_drafts
from ninfer_qwen3_5.program.work import RowWork

if TYPE_CHECKING:
    from ninfer_core.device.base import Lane


ROUNDS_AHEAD = 1
"""Rounds that may be enqueued behind one that is not collected."""


class QueuedUnits:
    """See :class:`ninfer_qwen3_5.program.units.Units`. ``held`` is released at the end, last in
    first out: the thread leaves the lane that it entered. With ``speculation`` a round goes through
    it if any of its rows verifies drafts or is to make some."""

    rounds_ahead = ROUNDS_AHEAD

    def __init__(
        self,
        model: TextModel,
        lanes: LaneState,
        masks: MaskRing,
        chunks: ChunkRunner,
        rounds: RoundLauncher,
        lane: Lane,
        held: ExitStack,
        speculation: SpecLauncher | None = None,
    ) -> None:
        self._speculation = speculation
        self._model = model
        self._lanes = lanes
        self._masks = masks
        self._chunks = chunks
        self._rounds = rounds
        self._lane = lane
        self._held = held

    def admit(self, sequence: Sequence) -> None:
        self._lanes.admit(sequence)

    def prefill(self, row: UnitRow, *, draws: bool, advance: Callable[[RowWork], None]) -> Launched:
        run = self._run(row.work)
        scores = PromptScores(self._model, row.work, run.residual, self._lane)
        if not draws:
            return ChunkLaunch(UnitKind.PREFILL, row, scores, advance)
        row.work.counted = True
        decide_drafts([row])
        return PromptLaunch(
            self._model,
            self._lanes,
            self._masks,
            row,
            run,
            scores,
            self._lane,
            self._chunks.drafter,
        )

    def replay(self, row: UnitRow, *, advance: Callable[[RowWork], None]) -> Launched:
        if row.work.stepped:
            self._step_through(row.work)
        else:
            self._run(row.work)
        return ChunkLaunch(UnitKind.REPLAY, row, _nothing, advance)

    def decode(self, rows: Rows[UnitRow], *, ahead: bool) -> Launched:
        speculation = self._speculation
        if speculation is None:
            return self._rounds.launch(rows)
        if decide_drafts(rows) or (ahead and speculation.latest):
            return speculation.launch(rows)
        speculation.passed()
        return self._rounds.launch(rows)

    def rows_ahead(self, launched: Launched) -> Rows[UnitRow]:
        if not isinstance(launched, RoundLaunch):
            return ()
        if self._speculation is None:
            return launched.rows
        sequences = [row.work.sequence for row in launched.rows]
        return () if self._next_drafts(sequences) else launched.rows

    def may_follow(self, launched: Launched, sequences: Rows[Sequence], *, decided: bool) -> bool:
        if self._speculation is None:
            return True
        drafts = self._next_drafts(sequences)
        # What verified rows leave is folded in front of a round like theirs, not of a plain one.
        return (drafts and decided) or (isinstance(launched, RoundLaunch) and not drafts)

    def _next_drafts(self, sequences: Rows[Sequence]) -> bool:
        """Whether the coming round of these has to do with drafts."""
        return any(s.drafts_to_verify or s.drafts_wanted(len(sequences)) for s in sequences)

    def control(self, rows: Rows[UnitRow], tokens: Rows[tuple[int, ...]]) -> Launched:
        for row, forced in zip(rows, tokens, strict=True):
            sequence, work = row.work.sequence, row.work
            waiting = sequence.tokens(sequence.frontier, sequence.ledger_length)
            run = [*waiting, *forced][: work.executed]
            if len(waiting) != 1 or len(run) != work.executed:
                raise EngineFailure("a control unit needs exactly one token not yet run")
            self._run(work, run)
        return ForcedLaunch(rows, tokens)

    def before_results(self, rehearse: Callable[[PendingBatch], object]) -> None:
        self._rounds.rehearse = rehearse

    def accepted(self, works: Rows[RowWork], tokens: Rows[Rows[int]]) -> None:
        for work, row in zip(works, tokens, strict=True):
            if work.sequence.request.sampling.penalised:
                self._lanes.add_count(work.sequence.row, row, 1)

    def dropped(self, work: RowWork, tokens: Rows[int]) -> None:
        if work.counted and work.sequence.request.sampling.penalised:
            self._lanes.add_count(work.sequence.row, tokens, -1)

    def fold(self, works: Rows[RowWork], counts: Rows[int]) -> None:
        if self._speculation is None:
            raise EngineFailure("rows were verified without a draft backend")
        self._speculation.fold(works, counts)

    def close(self) -> None:
        """Wait for what is enqueued and leave the lane. Idempotent. On a device that was lost
        there is nothing to wait for."""
        try:
            with suppress(DeviceLost):
                self._lane.synchronize()
        finally:
            self._held.close()

    def _run(self, work: RowWork, tokens: list[int] | None = None) -> ChunkRun:
        import torch

        sequence, stop = work.sequence, work.start + work.executed
        given = tokens if tokens is not None else sequence.tokens(work.start, stop)
        with torch.inference_mode():
            return self._chunks.run(sequence, given, work.start, work.source_slot, work.target_slot)

    def _step_through(self, work: RowWork) -> None:
        """Accepted tokens by the decode route; the last step leaves its state in the spare slot."""
        import torch

        sequence = work.sequence
        with torch.inference_mode():
            for step, token in enumerate(sequence.tokens(work.start, work.start + work.executed)):
                if step:
                    sequence.swap()
                self._chunks.step(
                    sequence, token, work.start + step, work.source_slot, work.target_slot
                )


def _nothing() -> tuple[TokenLogprobs, ...]:
    return ()
