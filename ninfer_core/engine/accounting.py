"""What a committed unit changes in the books: budget, state, counters, clocks."""

from __future__ import annotations

from collections.abc import Callable

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.frontend import OutputPreview
from ninfer_core.contract.units import PendingBatch, PendingRow, Progress, UnitKind
from ninfer_core.engine.metrics import Metrics
from ninfer_core.engine.request_record import RequestRecord, Stopwatch
from ninfer_core.engine.scheduler import Scheduler
from ninfer_core.engine.states import RequestState, Transitions


class Accounting:
    """Runs between Program.commit and OutputSession.commit."""

    def __init__(
        self,
        scheduler: Scheduler,
        transitions: Transitions,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._transitions = transitions
        self._metrics = metrics
        self._clock = clock

    def unit(self, kind: UnitKind, rows: int) -> None:
        self._metrics.unit(kind, rows)

    def accepted(self, tokens: int) -> None:
        """So many tokens of a unit, in all its rows."""
        self._metrics.accepted(tokens)

    def accept(
        self,
        record: RequestRecord,
        row: PendingRow,
        preview: OutputPreview,
        pending: PendingBatch,
    ) -> None:
        """Charge the accepted tokens and put the request where its next unit is.

        A terminal row keeps its state; the caller ends it.
        """
        taken = row.token_ids[: preview.accepted]
        count, watch = len(taken), record.watch
        record.tokens.extend(taken)
        if row.logprobs:
            record.logprobs.extend(row.logprobs[: preview.accepted])
        if row.scored:
            record.scored.extend(row.scored)
        if watch.first_token is None:
            watch.first_token = self._clock()
        watch.device += pending.device_seconds
        watch.rounds += 1
        if row.drafted:
            # Before the output is cut: a stop says nothing about how well drafts were made.
            _count_drafts(watch, row.drafted, len(row.token_ids) - 1)
        self._scheduler.progressed(record)
        unforced = record.forced[count:] if pending.kind is UnitKind.CONTROL else ()
        record.forced = preview.forced or unforced
        goes_on = record.state is RequestState.DECODE_READY and not record.forced
        if preview.finish is None and not goes_on:
            self._next_state(record)

    def chunk(self, record: RequestRecord, progress: Progress, *, last: bool) -> bool:
        """Book a chunk that produced no token; True when it was the last of a scored prompt.

        Raises EngineFailure when a prompt that wants output ended without a token.
        """
        record.watch.device += progress.device_seconds
        record.watch.rounds += 1
        if record.state is RequestState.REPLAY:
            self._metrics.unit(UnitKind.REPLAY, 1)
            if last:
                self._next_state(record)
            return False
        self._metrics.unit(UnitKind.PREFILL, 1)
        record.scored.extend(progress.scored)
        self._scheduler.progressed(record)
        if last and record.rules.max_new_tokens > 0:
            raise EngineFailure("the last chunk of a prompt produced no token")
        return last

    def _next_state(self, record: RequestRecord) -> None:
        new = RequestState.CONTROL_READY if record.forced else RequestState.DECODE_READY
        if record.state is RequestState.REPLAY and not record.tokens:
            new = RequestState.PREFILL
        if record.state is RequestState.PREFILL:
            self._transitions.move(record, RequestState.DECODE_READY)
        if record.state is not new:
            self._transitions.move(record, new)


def _count_drafts(watch: Stopwatch, drafted: int, accepted: int) -> None:
    """Per draft position, how often it was proposed and how often it was accepted."""
    missing = drafted - len(watch.drafted)
    watch.drafted.extend([0] * missing)
    watch.accepted.extend([0] * missing)
    for position in range(drafted):
        watch.drafted[position] += 1
        watch.accepted[position] += position < accepted
