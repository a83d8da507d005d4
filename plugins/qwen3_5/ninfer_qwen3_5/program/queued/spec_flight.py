"""A speculative round in flight; only ``collect`` waits."""

from __future__ import annotations

import time
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.contract.single_use import SingleUse
from ninfer_core.contract.units import PendingBatch, PendingRow, UnitKind
from ninfer_core.ops.contracts.values import LogprobRows
from ninfer_qwen3_5.program.judging import Judged, judged_row
from ninfer_qwen3_5.program.queued.results import Coming
from ninfer_qwen3_5.program.queued.spec_inputs import Answer, Behind, SpecInputs
from ninfer_qwen3_5.program.queued.spec_rounds import Held
from ninfer_qwen3_5.program.sampler import token_logprobs
from ninfer_qwen3_5.program.units import UnitRow
from ninfer_qwen3_5.program.work import RowWork, Verified

if TYPE_CHECKING:
    from ninfer_core.device.base import Event


@dataclass(frozen=True, slots=True)
class Results:
    """A round's way back: ``event`` passes when its answer lies in ``place``; ``listed`` are its
    log-probabilities."""

    event: Event
    place: int
    listed: Coming | None


@dataclass(slots=True)
class SpecRow:
    """A row of a round: the state slots that it reads and that a fold leaves its state in, the
    ``place`` of its hidden rows, and what it goes on from. ``followed``: the next round is enqueued
    behind it and folds all that it accepts."""

    row: UnitRow
    source: int
    target: int
    place: int
    behind: Behind = Behind.NOTHING
    before: SpecRow | None = None
    followed: bool = False

    @property
    def lane(self) -> int:
        return self.row.work.sequence.row

    def verified(self, accepted: int) -> Verified:
        """What a commit needs, if the row accepted so many drafts."""
        folded = accepted + 1 if self.followed else 0
        return Verified(place=self.place, source=self.source, target=self.target, folded=folded)


class Follows(Protocol):
    """What a round in flight asks of its launcher."""

    inputs: SpecInputs

    def draw(self, rows: Rows[UnitRow], width: int) -> list[bool]: ...

    def follow(self, rows: Rows[UnitRow], held: Held, width: int, wanted: int) -> Results: ...

    def uncount(self, work: RowWork, tokens: Rows[int]) -> None: ...


class SpecLaunch(SingleUse):
    """A decode round that has to do with drafts: some of its rows verify them, or make some."""

    kind = UnitKind.DECODE

    def __init__(
        self, launcher: Follows, rows: Rows[SpecRow], held: Held, width: int, *, masked: bool
    ) -> None:
        super().__init__()
        self.works = tuple(one.row.work for one in rows)
        self._launcher = launcher
        self._rows = rows
        self._units = [one.row for one in rows]
        self._held = held
        self._width = width
        # Now, as ``finish`` may come when the round before is settled: a budget that has shrunk by
        # then must not be charged for that round again.
        self._wanted = max(work.useful_drafts(1 + work.behind) for work in self.works)
        self._dead: list[bool] | None = None
        self._results: Results | None = None
        self._launched = time.perf_counter()
        if not masked:
            self._follow()

    def finish(self) -> None:
        """Fill the masks and enqueue what they hold up; later calls do nothing."""
        if self._results is None:
            self._dead = self._launcher.draw(self._units, self._width)
            self._follow()

    def collect(self) -> PendingBatch:
        """What each row produced, 1 to K + 1 tokens. Consumes the launch."""
        self.consume()
        self.finish()
        assert self._results is not None
        began = time.perf_counter()
        self._results.event.wait()
        ended = time.perf_counter()
        answer = self._launcher.inputs.answer(self._results.place, len(self._rows), self._width)
        listed = self._listed(self._results.listed, answer)
        rows = tuple(self._row(index, answer, listed) for index in range(len(self._rows)))
        return PendingBatch(
            self.kind,
            rows,
            device_seconds=ended - self._launched,
            waited_seconds=ended - began,
            detail=self.works,
        )

    def _follow(self) -> None:
        self._results = self._launcher.follow(self._units, self._held, self._width, self._wanted)

    def _row(
        self, index: int, answer: Answer, listed: list[TokenLogprobs | None] | None
    ) -> PendingRow:
        row, accepted = self._rows[index], answer.accepted[index]
        work, judged = row.row.work, self._judged(index, answer, listed)
        produced = len(judged.token_ids)
        self._launcher.uncount(work, answer.tokens[index][produced : accepted + 1])
        drafts = tuple(answer.drafts[index]) if produced == accepted + 1 else ()
        work.verified = row.verified(accepted)
        work.proposed = drafts[: work.useful_drafts(produced)]
        return PendingRow(
            sequence=row.row.handle,
            frontier=work.sequence.ledger_length,
            token_ids=judged.token_ids,
            status=judged.status,
            logprobs=judged.logprobs,
            drafted=len(work.drafts),
        )

    def _judged(
        self, index: int, answer: Answer, listed: list[TokenLogprobs | None] | None
    ) -> Judged:
        tokens, width = answer.tokens[index], self._width
        columns = slice(index * width, (index + 1) * width)
        dead = [False] * width if self._dead is None else self._dead[columns]
        none: list[TokenLogprobs | None] = [None] * width
        logprobs = none if listed is None else listed[columns]
        broken = [bool(word) for word in answer.broken[index]]
        return judged_row(tokens, self._units[index].work.drafts, broken, dead, logprobs)

    def _listed(self, coming: Coming | None, answer: Answer) -> list[TokenLogprobs | None] | None:
        if coming is None:
            return None
        tops = [work.sequence.top for work in self.works for _ in range(self._width)]
        drawn = [token for row in answer.tokens for token in row]
        rows = LogprobRows(*coming.wait())
        listed = token_logprobs(rows, drawn, [top or 0 for top in tops])
        return [None if top is None else x for top, x in zip(tops, listed, strict=True)]
