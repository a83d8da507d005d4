"""How requests end: at once, at their next stable boundary, or after a whole output."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ninfer_core.contract.errors import EngineFailure, RequestError
from ninfer_core.contract.events import Finished, FinishReason
from ninfer_core.contract.program import Program
from ninfer_core.engine.capacity_events import CapacityEvents
from ninfer_core.engine.metrics import Metrics
from ninfer_core.engine.output import flush
from ninfer_core.engine.queue import TicketQueue
from ninfer_core.engine.request_record import Ending, RequestRecord
from ninfer_core.engine.resource_manager import ResourceManager
from ninfer_core.engine.results import terminal_event
from ninfer_core.engine.scheduler import Scheduler
from ninfer_core.engine.states import RUNNABLE, RequestState, Transitions


class Endings:
    """Takes every request to its one end.

    ``revoke`` asks the open context transaction of a request to undo itself; the request then
    ends from where that leaves it. ``capturing`` says whether that transaction is its capture.
    ``on_end`` hears of every end, after it was published; ``on_late_release`` of the release of
    what a request held longer than that.
    """

    def __init__(
        self,
        program: Program,
        scheduler: Scheduler,
        queue: TicketQueue,
        resources: ResourceManager,
        transitions: Transitions,
        events: CapacityEvents,
        metrics: Metrics,
        clock: Callable[[], float],
        on_end: Callable[[RequestRecord], None],
        on_late_release: Callable[[], None],
    ) -> None:
        self._program = program
        self._scheduler = scheduler
        self._queue = queue
        self._resources = resources
        self._transitions = transitions
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._on_end = on_end
        self._on_late_release = on_late_release
        self._requested: deque[RequestRecord] = deque()
        self._finished: deque[RequestRecord] = deque()
        self.revoke: Callable[[RequestRecord], None]
        self.capturing: Callable[[RequestRecord], bool]

    @property
    def due(self) -> bool:
        """Whether an end waits to be taken further."""
        return bool(self._requested or self._finished)

    def request(self, record: RequestRecord, ending: Ending) -> None:
        """``record`` must end with ``ending`` at its next stable boundary; the first word wins."""
        if record.doomed is None:
            record.doomed = ending
        self._requested.append(record)

    def stop_requested(self) -> None:
        """End every request that was asked to, as far as its state allows now. Those in flight are
        judged when their unit settles, later in this cycle."""
        while self._requested:
            record = self._requested.popleft()
            if record.doomed is not None and not record.flying:
                self.stop(record, record.doomed)

    def stop(self, record: RequestRecord, ending: Ending) -> None:
        """End ``record`` from the state it is in; nothing happens when it has ended already."""
        if record.capture is not None and self.capturing(record):
            record.doomed = record.doomed or ending
            self.revoke(record)
        elif record.state in RUNNABLE:
            record.capture = None
            self._stop_resident(record, ending)
        elif record.state is RequestState.WAITING:
            self._queue.remove(record)
            self._events.queued()
            self._end_outside(record, ending)
        elif record.state is RequestState.PAUSED:
            self._discard(record)
            self._end_outside(record, ending)
        elif record.state in (RequestState.MATERIALIZING, RequestState.PAUSING):
            self.revoke(record)

    def model_finished(self, record: RequestRecord, ending: Ending) -> None:
        """The model has nothing more to do for ``record``; it is settled with :meth:`settle`."""
        record.ending = ending
        self._transitions.move(record, RequestState.MODEL_FINISHED)
        self._finished.append(record)

    def settle(self) -> None:
        """Keep or release what finished requests hold, free their lanes, publish their ends.

        A request that ended while it is in a round launched ahead has its end published at once;
        it keeps lane and room until that round is settled.
        """
        for _ in range(len(self._finished)):
            record = self._finished.popleft()
            if not record.flying:
                self._release(record)
                continue
            self._finished.append(record)
            if not record.response.done:
                self._publish_end(record)

    def awaited_by(self, record: RequestRecord) -> bool:
        """Whether the end of an answer that was there when ``record`` came is still to be kept, and
        ``record`` might begin with it. It will be when the round that its row is in has settled,
        before the next cycle admits."""
        return self._resources.may_reuse(record) and any(
            one.response.done
            and one.watch.ended is not None
            and one.watch.ended <= record.watch.submitted
            and self._resources.ended_well(one)
            for one in self._finished
        )

    def end_now(self, record: RequestRecord, ending: Ending) -> None:
        """End a request that never entered the queue."""
        record.ending = ending
        self._publish_end(record)

    def _release(self, record: RequestRecord) -> None:
        self._resources.release(record)
        self._scheduler.leave(record)
        self._events.changed()
        if record.response.done:
            self._transitions.move(record, RequestState.ENDED)
            self._on_late_release()
        else:
            self._publish_end(record)

    def _stop_resident(self, record: RequestRecord, ending: Ending) -> None:
        if isinstance(ending, FinishReason):
            ending = flush(record, ending)
        self.model_finished(record, ending)

    def _discard(self, record: RequestRecord) -> None:
        if record.resume is None:
            raise EngineFailure("a paused request has no resume state")
        self._program.discard(record.resume)
        self._resources.reclaimer.changed()
        record.resume = None
        self._scheduler.unpark(record)
        self._events.changed()

    def _end_outside(self, record: RequestRecord, ending: Ending) -> None:
        if isinstance(ending, FinishReason):
            ending = flush(record, ending)
        record.ending = ending
        self._publish_end(record)

    def _publish_end(self, record: RequestRecord) -> None:
        record.watch.ended = self._clock()
        event = terminal_event(record)
        if not record.flying:
            self._transitions.move(record, RequestState.ENDED)
        record.response.end(event)
        self._count(event.result.finish_reason if isinstance(event, Finished) else event.error)
        self._on_end(record)

    def _count(self, ending: Ending) -> None:
        if isinstance(ending, RequestError):
            self._metrics.failed(ending.code)
        else:
            self._metrics.finished(ending.value)
