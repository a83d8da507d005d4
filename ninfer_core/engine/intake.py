"""What reaches the worker from outside: requests, cancellations, questions, and the clock."""

from __future__ import annotations

from collections.abc import Callable

from ninfer_core.contract.errors import QueueTimeout
from ninfer_core.contract.events import FinishReason, GenerationStart, ReuseReason
from ninfer_core.engine.capacity_events import CapacityEvents
from ninfer_core.engine.endings import Endings
from ninfer_core.engine.lifecycle import Abandon, Ask, Cancel, Lifecycle, Message, Stop, Submit
from ninfer_core.engine.metrics import Metrics
from ninfer_core.engine.queue import DeadlineHeap, DeadlineKind, TicketQueue
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.states import RequestState


class Intake:
    """Draws tickets and keeps the table of requests that have no end yet."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        queue: TicketQueue,
        endings: Endings,
        events: CapacityEvents,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._lifecycle = lifecycle
        self._queue = queue
        self._endings = endings
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._deadlines = DeadlineHeap()
        self._last_ticket = 0
        self.open: dict[int, RequestRecord] = {}
        self.stop_asked = False

    def take_in(self) -> int:
        """Take everything that has arrived and every deadline that passed; returns how many."""
        taken = 0
        while (message := self._lifecycle.take()) is not None:
            taken += 1
            self._take(message)
        due = self._deadlines.expired(self._clock())
        for ticket, kind in due:
            self._expire(ticket, kind)
        return taken + len(due)

    def seconds_to_deadline(self) -> float | None:
        at = self._deadlines.next_at()
        return None if at is None else max(0.0, at - self._clock())

    def forget(self, record: RequestRecord, *, holding: bool = False) -> None:
        """``record`` has its end. ``holding``: the lifecycle hears later of its release."""
        self.open.pop(record.ticket, None)
        self._lifecycle.ended(holding=holding)

    def _take(self, message: Message) -> None:
        if isinstance(message, Submit):
            self._admit(message.record)
        elif isinstance(message, Cancel):
            self._endings.request(message.record, FinishReason.CANCELLED)
        elif isinstance(message, Abandon):
            message.record.response.release()
            self._endings.request(message.record, FinishReason.CANCELLED)
        elif isinstance(message, Ask):
            message.run()
        elif isinstance(message, Stop):
            self.stop_asked = True

    def _admit(self, record: RequestRecord) -> None:
        self._last_ticket += 1
        record.ticket = self._last_ticket
        self.open[record.ticket] = record
        self._metrics.submitted()
        if record.immediate:
            self._end_immediate(record)
            return
        self._deadlines.push(record.queue_deadline, record.ticket, DeadlineKind.QUEUE)
        self._deadlines.push(record.deadline, record.ticket, DeadlineKind.REQUEST)
        self._queue.push(record)
        self._events.queued()

    def _end_immediate(self, record: RequestRecord) -> None:
        """A request for no output and no scores: its usage is all there is to say."""
        record.started = True
        record.response.put(
            GenerationStart(record.prompt_tokens, 0, ReuseReason.DISABLED, record.notes)
        )
        self._endings.end_now(record, record.limit_reason)

    def _expire(self, ticket: int, kind: DeadlineKind) -> None:
        record = self.open.get(ticket)
        if record is None:
            return
        if kind is DeadlineKind.REQUEST:
            ending = record.asked_to_stop(self._clock())
            if ending is not None:
                self._endings.request(record, ending)
        elif record.state is RequestState.WAITING:
            self._endings.request(record, queue_timeout())


def queue_timeout() -> QueueTimeout:
    return QueueTimeout(
        "the request waited longer than its queue timeout",
        hint="retry later or allow a longer queue timeout",
    )
