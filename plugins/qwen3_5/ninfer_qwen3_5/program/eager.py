"""Units on a device that computes when asked: launch runs Forward, finish samples."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.units import Launched, PendingBatch, UnitKind
from ninfer_qwen3_5.program.executor import Executor
from ninfer_qwen3_5.program.forwards import Forwards
from ninfer_qwen3_5.program.judging import Judge
from ninfer_qwen3_5.program.launches import ChunkLaunch, ForcedLaunch, SampledLaunch
from ninfer_qwen3_5.program.sampler import Sampler
from ninfer_qwen3_5.program.sequence import Sequence
from ninfer_qwen3_5.program.units import UnitRow, decide_drafts
from ninfer_qwen3_5.program.verifying import Verifier, VerifyLaunch
from ninfer_qwen3_5.program.work import RowWork


class EagerUnits:
    """See :class:`ninfer_qwen3_5.program.units.Units`."""

    rounds_ahead = 0

    def __init__(self, executor: Executor, sampler: Sampler) -> None:
        self._forwards = Forwards(executor)
        self._sampler = sampler
        self._verifier: Verifier | None = None
        if executor.drafter is not None:
            self._verifier = Verifier(
                executor, executor.drafter, Judge(sampler, executor.drafter.laws)
            )

    def admit(self, sequence: Sequence) -> None:
        self._sampler.admit(sequence)

    def prefill(self, row: UnitRow, *, draws: bool, advance: Callable[[RowWork], None]) -> Launched:
        kind, work = UnitKind.PREFILL, row.work
        if not draws:
            return ChunkLaunch(
                kind, row.handle, work, lambda: self._forwards.chunk(work).scored, advance
            )
        decide_drafts([row])
        outcome = self._forwards.chunk(work)
        return SampledLaunch(
            kind,
            [row.handle],
            [work],
            [row.masks],
            self._sampler,
            lambda: self._forwards.logits(outcome.last_residual),
            outcome.scored,
            None if self._verifier is None else self._verifier.open,
        )

    def replay(self, row: UnitRow, *, advance: Callable[[RowWork], None]) -> Launched:
        work = row.work
        return ChunkLaunch(
            UnitKind.REPLAY, row.handle, work, lambda: self._forwards.replay(work), advance
        )

    def decode(self, rows: Rows[UnitRow], *, ahead: bool) -> Launched:
        if ahead:
            raise EngineFailure("this device computes when asked and launches nothing ahead")
        if decide_drafts(rows) and self._verifier is not None:
            return VerifyLaunch(rows, self._verifier)
        works = [row.work for row in rows]
        return SampledLaunch(
            UnitKind.DECODE,
            [row.handle for row in rows],
            works,
            [row.masks for row in rows],
            self._sampler,
            lambda: self._forwards.decode(works),
        )

    def rows_ahead(self, launched: Launched) -> Rows[UnitRow]:
        return ()

    def may_follow(self, launched: Launched, sequences: Rows[Sequence], *, decided: bool) -> bool:
        return False

    def control(self, rows: Rows[UnitRow], tokens: Rows[tuple[int, ...]]) -> Launched:
        works = [row.work for row in rows]
        return ForcedLaunch(
            [row.handle for row in rows],
            works,
            tokens,
            lambda: self._forwards.forced(works, tokens),
        )

    def before_results(self, rehearse: Callable[[PendingBatch], object]) -> None:
        """Nothing is waited for."""

    def accepted(self, works: Rows[RowWork], tokens: Rows[Rows[int]]) -> None:
        self._sampler.count([work.sequence for work in works], tokens)

    def dropped(self, work: RowWork, tokens: Rows[int]) -> None:
        """Nothing was counted yet."""

    def fold(self, works: Rows[RowWork], counts: Rows[int]) -> None:
        if self._verifier is None:
            raise EngineFailure("rows were verified without a draft backend")
        self._verifier.fold(works, counts)

    def close(self) -> None:
        """Nothing is held beyond the instance's arenas."""
