"""From a collected unit to published output, in the one order that never shows a lie.

preview → Program.commit → budget and accounting → OutputSession.commit → publish
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter_ns

from ninfer_core.contract.errors import (
    ConstraintDeadEnd,
    EngineFailure,
    NonFiniteOutput,
    RequestError,
)
from ninfer_core.contract.frontend import OutputPreview, OutputSpan
from ninfer_core.contract.program import Program
from ninfer_core.contract.units import (
    Disposition,
    PendingBatch,
    PendingRow,
    Progress,
    RowDecision,
    RowStatus,
    UnitKind,
)
from ninfer_core.engine.accounting import Accounting
from ninfer_core.engine.endings import Endings
from ninfer_core.engine.flights import Flight
from ninfer_core.engine.output import commit_output, preview_output, publish, publish_progress
from ninfer_core.engine.request_record import Ending, RequestRecord, Stopwatch
from ninfer_core.engine.response import Response
from ninfer_core.engine.round_timings import CycleTimes
from ninfer_core.engine.states import RequestState

_VOID = RowDecision(disposition=Disposition.VOID)
_ONE_MORE = RowDecision(disposition=Disposition.ACCEPT, accepted=1)
"""What nearly every row of nearly every round gets; immutable, so one will do."""


@dataclass(slots=True)
class Judged:
    """One row with its decision: a preview that it accepts, the end that refuses it, or neither
    when it is void: an earlier round, that this one was ahead of, ended it or forces tokens."""

    record: RequestRecord
    row: PendingRow
    decision: RowDecision
    preview: OutputPreview | None = None
    ending: Ending | None = None


class Publisher:
    """Settles flights. ``reached`` hears how far a prompt is read. A fault in any step leaves the
    later steps of its whole unit undone."""

    def __init__(
        self,
        program: Program,
        accounting: Accounting,
        endings: Endings,
        clock: Callable[[], float],
        times: CycleTimes,
        reached: Callable[[RequestRecord, int], None],
    ) -> None:
        self._reached = reached
        self._times = times
        self._program = program
        self._accounting = accounting
        self._endings = endings
        self._clock = clock
        self._awaited: Flight | None = None

    def settle(self, flight: Flight) -> None:
        """Wait for the unit and take its outcome to the end."""
        times, started = self._times, perf_counter_ns()
        self._awaited = flight
        try:
            outcome = flight.launched.collect()
        finally:
            self._awaited = None
        times.collect += perf_counter_ns() - started
        times.waited += outcome.waited_seconds
        times.units += 1
        if isinstance(outcome, Progress):
            self._progress(flight, outcome)
        else:
            flight.pending = outcome
            self._batch(flight, outcome)

    def rehearse(self) -> None:
        """Judge the latest token of every awaited row once more, book and publish it for a stand-in
        of the request that nobody reads, and drop that: nothing changes but what the caches hold
        when the round ends. Nothing is judged in a round that the engine did not launch."""
        records = self._awaited.records if self._awaited is not None else ()
        for record in records:
            if record.tokens and record.session.masks() is None:
                row = PendingRow(
                    sequence=record.held_sequence(),
                    frontier=0,
                    token_ids=(record.tokens[-1],),
                )
                self._take_for_stand_in(self._judge(record, row, UnitKind.DECODE, self._clock()))

    def _take_for_stand_in(self, judged: Judged) -> None:
        if judged.preview is None or judged.decision is not _ONE_MORE or judged.preview.forced:
            return
        record, row = judged.record, judged.row
        standing = replace(record, tokens=[], watch=Stopwatch(0.0, 0.0), response=Response())
        batch = PendingBatch(UnitKind.DECODE, (row,))
        self._accounting.accept(standing, row, judged.preview, batch)
        publish(standing, judged.preview.deltas)

    def _progress(self, flight: Flight, progress: Progress) -> None:
        (record,) = flight.records
        if progress.sequence != record.sequence:
            raise EngineFailure("a chunk came back for another sequence")
        if progress.status is not RowStatus.OK:
            self._endings.stop(record, _row_error(progress.status))
            return
        if record.state is RequestState.PREFILL:
            publish_progress(record, progress.frontier)
        if self._accounting.chunk(record, progress, last=flight.last):
            self._endings.stop(record, record.limit_reason)
        elif not flight.last:
            self._reached(record, progress.frontier)

    def _batch(self, flight: Flight, pending: PendingBatch) -> None:
        judged = self._judge_all(flight, pending)
        started = perf_counter_ns()
        self._program.commit(pending, [one.decision for one in judged])
        self._times.commit += perf_counter_ns() - started
        if pending.kind is UnitKind.DECODE:
            self._times.rows = len(judged)
        self._accounting.unit(pending.kind, len(judged))
        accepted = [(one.record, one.row, one.preview) for one in judged if one.preview is not None]
        self._accounting.accepted(sum(preview.accepted for _, _, preview in accepted))
        for record, row, preview in accepted:
            self._accounting.accept(record, row, preview, pending)
            if preview.finish is not None:
                self._endings.model_finished(record, preview.finish)
        for record, _, preview in accepted:
            commit_output(record, preview)
        for record, _, preview in accepted:
            if pending.kind is UnitKind.PREFILL:
                publish_progress(record, record.prompt_tokens)
            publish(record, preview.deltas)
        if len(accepted) < len(judged):
            for one in judged:
                if one.ending is not None:
                    self._endings.stop(one.record, one.ending)

    def _judge_all(self, flight: Flight, pending: PendingBatch) -> list[Judged]:
        rows = pending.rows
        if [row.sequence for row in rows] != [record.sequence for record in flight.records]:
            raise EngineFailure("a unit came back with other rows than it was launched with")
        kind, now = pending.kind, self._clock()
        return [
            self._judge(record, row, kind, now)
            for record, row in zip(flight.records, rows, strict=True)
        ]

    def _judge(self, record: RequestRecord, row: PendingRow, kind: UnitKind, now: float) -> Judged:
        if record.state is RequestState.MODEL_FINISHED:
            return Judged(record, row, _VOID)
        ending = record.asked_to_stop(now)
        if ending is not None:
            return _refused(record, row, ending)
        if kind is UnitKind.DECODE and record.state is not RequestState.DECODE_READY:
            return Judged(record, row, _VOID)
        if row.status is not RowStatus.OK:
            return _refused(record, row, _row_error(row.status))
        span = _span(record, row, kind)
        preview = preview_output(record, span)
        if isinstance(preview, RequestError):
            return _refused(record, row, preview)
        return Judged(record, row, _accepted(preview, span), preview)


def _span(record: RequestRecord, row: PendingRow, kind: UnitKind) -> OutputSpan:
    """The row's tokens cut to the budget, with the finish that the budget imposes."""
    if not row.token_ids:
        raise EngineFailure("a row produced no token")
    tokens, logprobs, limit, left = row.token_ids, row.logprobs, None, record.remaining
    if len(tokens) >= left:
        tokens, logprobs, limit = tokens[:left], logprobs[:left], record.limit_reason
    control = kind is UnitKind.CONTROL
    return OutputSpan(token_ids=tokens, logprobs=logprobs, control=control, limit=limit)


def _accepted(preview: OutputPreview, span: OutputSpan) -> RowDecision:
    """The decision that a sound preview of ``span`` asks for."""
    plain = preview.finish is None and span.limit is None and not preview.boundaries
    if plain and preview.accepted == 1 == len(span.token_ids):
        return _ONE_MORE
    _check(preview, span)
    return RowDecision(
        disposition=Disposition.ACCEPT,
        accepted=preview.accepted,
        terminal=preview.finish is not None,
        boundaries=preview.boundaries,
    )


def _check(preview: OutputPreview, span: OutputSpan) -> None:
    produced = len(span.token_ids)
    if not 1 <= preview.accepted <= produced:
        raise EngineFailure(f"a preview accepts {preview.accepted} of {produced} tokens")
    whole = preview.accepted == produced
    cut = bool(preview.forced) and not (whole or span.control)
    if preview.finish is None and not cut and (not whole or span.limit is not None):
        raise EngineFailure("a preview neither finishes nor accepts everything")
    boundaries = preview.boundaries
    if boundaries and not (min(boundaries) > 0 and max(boundaries) <= preview.accepted):
        raise EngineFailure("a preview states a boundary outside its accepted span")


def _refused(record: RequestRecord, row: PendingRow, ending: Ending) -> Judged:
    failed = isinstance(ending, RequestError)
    decision = RowDecision(
        disposition=Disposition.FAILED if failed else Disposition.CANCELLED,
        error=ending if isinstance(ending, RequestError) else None,
    )
    return Judged(record, row, decision, ending=ending)


def _row_error(status: RowStatus) -> RequestError:
    if status is RowStatus.DEAD_END:
        return ConstraintDeadEnd(
            "no token continues the constraint here, or its masks take too long to work out"
        )
    return NonFiniteOutput("the model's logits held NaN or infinity")
