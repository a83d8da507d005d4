"""Units in flight on a device with a queue; only ``collect`` waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Rows

from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.contract.single_use import SingleUse
from ninfer_core.contract.units import PendingBatch, PendingRow, Progress, RowStatus, UnitKind
from ninfer_qwen3_5.program.units import UnitRow
from ninfer_qwen3_5.program.work import RowWork

Drawing = tuple[list[int], list[bool]]
"""Tokens and broken flags by row."""


class DrawnLaunch(SingleUse):
    """A unit whose rows' next tokens are drawn on the device: a round, or a prompt's last chunk.

    ``finish`` fills masks and enqueues the drawing half, or does nothing; it returns which rows are
    at a dead end. ``wait`` blocks until the draws are there. ``logprobs`` and ``scored`` are asked
    after that.
    """

    def __init__(
        self,
        kind: UnitKind,
        rows: Rows[UnitRow],
        finish: Callable[[], list[bool]],
        wait: Callable[[], Drawing],
        logprobs: Callable[[list[int]], list[tuple[TokenLogprobs, ...]]],
        scored: Callable[[], tuple[TokenLogprobs, ...]],
    ) -> None:
        super().__init__()
        self.kind = kind
        self.works = tuple([row.work for row in rows])
        self._rows = tuple(rows)
        self._frontiers = [work.start + work.executed for work in self.works]
        self._finish = finish
        self._wait = wait
        self._logprobs = logprobs
        self._scored = scored
        self._dead: list[bool] | None = None
        self._launched = time.perf_counter()

    def finish(self) -> None:
        if self._dead is None:
            self._dead = self._finish()

    def collect(self) -> PendingBatch:
        """The drawn tokens, one per row. Consumes the launch."""
        self.consume()
        self.finish()
        began = time.perf_counter()
        tokens, broken = self._wait()
        ended = time.perf_counter()
        logprobs, scored = self._logprobs(tokens), self._scored()
        rows = [
            PendingRow(
                sequence=row.handle,
                frontier=frontier,
                token_ids=(token,),
                status=status,
                logprobs=entries,
                scored=scored,
            )
            for row, frontier, token, status, entries in zip(
                self._rows, self._frontiers, tokens, self._statuses(broken), logprobs, strict=True
            )
        ]
        return PendingBatch(
            self.kind,
            tuple(rows),
            device_seconds=ended - self._launched,
            waited_seconds=ended - began,
            detail=self.works,
        )

    def _statuses(self, broken: list[bool]) -> list[RowStatus]:
        statuses = [RowStatus.NONFINITE if nan else RowStatus.OK for nan in broken]
        if self._dead and True in self._dead:
            for index, dead in enumerate(self._dead):
                if dead and not broken[index]:
                    statuses[index] = RowStatus.DEAD_END
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
