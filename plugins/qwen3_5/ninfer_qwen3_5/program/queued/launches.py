"""Units in flight on a device with a queue; only ``collect`` waits."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Rows

from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.contract.single_use import SingleUse
from ninfer_core.contract.units import PendingBatch, PendingRow, Progress, RowStatus, UnitKind
from ninfer_qwen3_5.program.queued.ring import Drawing
from ninfer_qwen3_5.program.units import UnitRow
from ninfer_qwen3_5.program.work import RowWork

_OK, _NONFINITE, _DEAD_END = RowStatus.OK, RowStatus.NONFINITE, RowStatus.DEAD_END


class DrawnLaunch(SingleUse, ABC):
    """A unit whose rows' next tokens are drawn on the device: a round, or a prompt's last chunk.

    What its kinds do differently: ``_draw`` fills masks and enqueues the drawing half, or does
    nothing, and says which rows are at a dead end, None for none; ``_wait`` blocks until the draws
    are there; ``_listed`` and ``_scores`` are asked after that.
    """

    kind: UnitKind

    def __init__(self, rows: Rows[UnitRow]) -> None:
        super().__init__()
        self.rows = rows
        self._finished = False
        self._dead: Rows[bool] | None = None
        self._launched = time.perf_counter()

    @property
    def works(self) -> tuple[RowWork, ...]:
        return tuple([row.work for row in self.rows])

    def finish(self) -> None:
        if not self._finished:
            self._dead = self._draw()
            self._finished = True

    def collect(self) -> PendingBatch:
        """The drawn tokens, one per row. Consumes the launch."""
        self.consume()
        self.finish()
        began = time.perf_counter()
        drawing = self._wait()
        ended = time.perf_counter()
        return self._pending(drawing, self._listed(drawing[0]), self._scores(), began, ended)

    def _pending(
        self,
        drawing: Drawing,
        listed: Rows[tuple[TokenLogprobs, ...]],
        scored: tuple[TokenLogprobs, ...],
        began: float,
        ended: float,
    ) -> PendingBatch:
        tokens, broken = drawing
        rows = [
            PendingRow(
                sequence=row.handle,
                frontier=row.work.start + row.work.executed,
                token_ids=(token,),
                status=status,
                logprobs=entries,
                scored=scored,
            )
            for row, token, status, entries in zip(
                self.rows, tokens, self._statuses(broken), listed, strict=True
            )
        ]
        return PendingBatch(
            self.kind,
            tuple(rows),
            device_seconds=ended - self._launched,
            waited_seconds=ended - began,
            detail=self.works,
        )

    @abstractmethod
    def _draw(self) -> Rows[bool] | None: ...

    @abstractmethod
    def _wait(self) -> Drawing: ...

    @abstractmethod
    def _listed(self, tokens: Rows[int]) -> Rows[tuple[TokenLogprobs, ...]]:
        """Log-probabilities by row; empty for rows that ask for none."""

    def _scores(self) -> tuple[TokenLogprobs, ...]:
        """Of the prompt's tokens in this unit."""
        return ()

    def _statuses(self, broken: Rows[int]) -> list[RowStatus]:
        dead = self._dead
        if dead is None and not any(broken):
            return [_OK] * len(broken)
        statuses = [_NONFINITE if nan else _OK for nan in broken]
        for index, ended in enumerate(dead or ()):
            if ended and not broken[index]:
                statuses[index] = _DEAD_END
        return statuses


class ForcedLaunch(SingleUse):
    """A control unit: the rows' tokens are given, nothing is drawn and nothing is waited for."""

    kind = UnitKind.CONTROL

    def __init__(self, rows: Rows[UnitRow], tokens: Rows[tuple[int, ...]]) -> None:
        super().__init__()
        self.works = tuple(row.work for row in rows)
        self._rows = tuple(
            PendingRow(
                sequence=row.handle, frontier=row.work.sequence.ledger_length, token_ids=given
            )
            for row, given in zip(rows, tokens, strict=True)
        )

    def finish(self) -> None:
        """Nothing is sampled."""

    def collect(self) -> PendingBatch:
        self.consume()
        return PendingBatch(self.kind, self._rows, detail=self.works)


class ChunkLaunch(SingleUse):
    """A chunk that draws nothing: it is committed where it is collected, unseen by the host unless
    it scored a prompt. Later work follows it on the same lane."""

    def __init__(
        self,
        kind: UnitKind,
        row: UnitRow,
        scored: Callable[[], tuple[TokenLogprobs, ...]],
        advance: Callable[[RowWork], None],
    ) -> None:
        super().__init__()
        self.kind = kind
        self.works = (row.work,)
        self._row = row
        self._scored = scored
        self._advance = advance

    def finish(self) -> None:
        """Nothing is sampled."""

    def collect(self) -> Progress:
        self.consume()
        began = time.perf_counter()
        scored = self._scored()
        waited = time.perf_counter() - began
        self._advance(self._row.work)
        broken = any(entry.logprob != entry.logprob for entry in scored)
        if broken:
            self._row.work.sequence.fail()
        return Progress(
            sequence=self._row.handle,
            frontier=self._row.work.sequence.frontier,
            scored=scored,
            status=RowStatus.NONFINITE if broken else RowStatus.OK,
            device_seconds=waited,
            waited_seconds=waited,
        )
