"""Whether the engine is there, and the hand-over from other threads to its worker."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ninfer_core.contract.engine import Availability, AvailabilityState
from ninfer_core.contract.errors import Unavailable
from ninfer_core.engine.request_record import RequestRecord

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Submit:
    record: RequestRecord


@dataclass(frozen=True, slots=True)
class Cancel:
    record: RequestRecord


@dataclass(frozen=True, slots=True)
class Abandon:
    """The handle is gone: cancel, and count the consumer as released."""

    record: RequestRecord


@dataclass(frozen=True, slots=True)
class Ask:
    """A question that only the worker may answer."""

    question: Callable[[], Any]
    answer: Future[Any] = field(default_factory=Future)

    def run(self) -> None:
        """Answer with the value or with what the question raised."""
        try:
            self.answer.set_result(self.question())
        except Exception as error:
            self.answer.set_exception(error)


@dataclass(frozen=True, slots=True)
class Stop:
    """End every request and leave the loop."""


def bounded(timeout: float | None) -> float | None:
    """``timeout`` as far as a thread can be told to wait: longer ones raise OverflowError there."""
    return None if timeout is None else min(timeout, threading.TIMEOUT_MAX)


Message = Submit | Cancel | Abandon | Ask | Stop
_OPEN = frozenset({AvailabilityState.READY, AvailabilityState.DRAINING})


class Lifecycle:
    """Availability, the worker's inbox, the number of requests without an end, and of those that
    have theirs and hold room until a round launched ahead of it is settled.

    A request enters the inbox only while the engine is ready, under the lock that :meth:`shut`
    takes, so that none can slip in behind the last look. The inbox itself is a
    ``queue.SimpleQueue``: its ``put`` is re-entrant and may run in a finaliser.
    """

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._peeked: Message | None = None
        self._changed = threading.Condition()
        self._availability = Availability(AvailabilityState.STARTING)
        self._serves = False
        self._open = 0
        self._holding = 0

    @property
    def open_requests(self) -> int:
        return self._open

    def availability(self) -> Availability:
        return self._availability

    def require_ready(self) -> None:
        """Raises Unavailable unless new requests are taken."""
        if not (self._availability.ready or self._warming()):
            raise self.unavailable()

    def unavailable(self) -> Unavailable:
        now = self._availability
        reason = f": {now.reason}" if now.reason else ""
        return Unavailable(f"the engine is {now.state.value}{reason}")

    def serves(self) -> None:
        """The worker runs: requests of a warm-up are taken from here on."""
        self._serves = True

    def ready(self) -> None:
        self._set(Availability(AvailabilityState.READY), only_from=AvailabilityState.STARTING)

    def drain(self) -> None:
        """Refuse new requests; those inside go on."""
        self._set(Availability(AvailabilityState.DRAINING), only_from=AvailabilityState.READY)

    def shut(self, state: AvailabilityState, reason: str | None = None) -> None:
        """FAILED or CLOSED. A failed engine that is closed keeps its reason."""
        with self._changed:
            self._availability = Availability(state, reason or self._availability.reason)
            self._changed.notify_all()

    def post(self, record: RequestRecord) -> None:
        """Hand a new request to the worker. Raises Unavailable."""
        with self._changed:
            self.require_ready()
            self._open += 1
            self._inbox.put(Submit(record))

    def ask(self, question: Callable[[], T]) -> T:
        """Have the worker evaluate ``question`` between two cycles. Raises Unavailable."""
        message = Ask(question)
        with self._changed:
            if not (self._availability.state in _OPEN or self._warming()):
                raise self.unavailable()
            self._inbox.put(message)
        answer: T = message.answer.result()
        return answer

    @contextmanager
    def together(self) -> Iterator[None]:
        """Keep the worker waiting, so that it takes in at once what arrives inside."""
        through = threading.Event()
        self._inbox.put(Ask(through.wait))
        try:
            yield
        finally:
            through.set()

    def nudge(self, message: Cancel | Abandon | Stop) -> None:
        """Needs no lock and never fails; lost only on a worker that has ended everything."""
        self._inbox.put(message)

    def ended(self, *, holding: bool = False) -> None:
        """A request has its end. ``holding``: what it holds is released later, which
        :meth:`released` tells."""
        with self._changed:
            self._open -= 1
            self._holding += holding
            self._changed.notify_all()

    def released(self) -> None:
        """A request that ended while it held room holds nothing any more."""
        with self._changed:
            self._holding -= 1
            self._changed.notify_all()

    def wait_quiet(self, timeout: float | None) -> bool:
        """Wait until every request has its end and holds nothing, or the engine is gone."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._open == self._holding == 0, bounded(timeout)
            )

    def take(self) -> Message | None:
        """The next message, None when there is none now. Worker only."""
        message, self._peeked = self._peeked, None
        if message is not None or self._inbox.empty():
            return message
        return self._inbox.get_nowait()

    def wait(self, timeout: float | None) -> None:
        """Sleep until a message arrives or ``timeout`` seconds passed. Worker only."""
        if self._peeked is None:
            try:
                self._peeked = self._inbox.get(timeout=bounded(timeout))
            except queue.Empty:
                return

    def _warming(self) -> bool:
        return self._serves and self._availability.state is AvailabilityState.STARTING

    def _set(self, availability: Availability, *, only_from: AvailabilityState) -> None:
        with self._changed:
            if self._availability.state is only_from:
                self._availability = availability
                self._changed.notify_all()
