"""The events of one request on their way from the worker to its consumer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.events import Failed, Finished, GenerationEvent

Terminal = Finished | Failed


class Response:
    """Event queue, end, and the two facts that together return the request's capacity.

    The worker calls :meth:`put` and :meth:`end`, the consumer :meth:`take` and :meth:`release`.
    ``on_settled`` runs once, when the response is done and the consumer has let go of it.
    """

    def __init__(self, on_settled: Callable[[], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._events: deque[GenerationEvent] = deque()
        self._on_settled = on_settled
        self._terminal: Terminal | None = None
        self._failure: EngineFailure | None = None
        self._released = False
        self._wake: Callable[[], None] | None = None

    @property
    def done(self) -> bool:
        return self._terminal is not None

    @property
    def released(self) -> bool:
        return self._released

    @property
    def terminal(self) -> Terminal | None:
        return self._terminal

    @property
    def failure(self) -> EngineFailure | None:
        """Why the engine died, when that ended this request."""
        return self._failure

    def put(self, *events: GenerationEvent) -> None:
        """Publish ``events``; a consumer that waits is woken once."""
        with self._lock:
            if self._terminal is not None:
                raise EngineFailure("an event was published after the end of its request")
            if self._released:
                return
            self._events += events
            if self._waiting:
                self._changed.notify_all()
            wake = self._wake
        if wake is not None:
            wake()

    def end(self, event: Terminal, failure: EngineFailure | None = None) -> None:
        """Publish the one end. Raises EngineFailure on a second one."""
        with self._lock:
            if self._terminal is not None:
                raise EngineFailure("a request was ended twice")
            self._terminal = event
            self._failure = failure
            self._events.append(event)
            self._changed.notify_all()
            settled, wake = self._released, self._wake
        if settled:
            self._settle()
        elif wake is not None:
            wake()

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called after every publication, and at once when something is there. It is
        called by whoever publishes, so it must be quick, and may be called for nothing."""
        with self._lock:
            self._wake = wake
            readable = self._readable()
        if readable:
            wake()

    def take(self, timeout: float | None = None) -> GenerationEvent | None:
        """The next event, None after the end. Taking the end releases the consumer.

        Raises TimeoutError when no event came within ``timeout`` seconds.
        """
        with self._lock:
            if not (self._events or self._await(timeout)):
                raise TimeoutError(f"no event within {timeout} s")
            event = self._events.popleft() if self._events else None
        if event is None or event is self._terminal:
            self.release()
        return event

    def release(self) -> None:
        """The consumer reads no further. Idempotent."""
        with self._lock:
            if self._released:
                return
            self._released = True
            self._events.clear()
            self._changed.notify_all()
            settled = self._terminal is not None
        if settled:
            self._settle()

    def _await(self, timeout: float | None) -> bool:
        """Wait, with the lock held, for something to read; False when nothing came in time."""
        if timeout == 0:
            return self._readable()
        self._waiting += 1
        try:
            return self._changed.wait_for(self._readable, timeout)
        finally:
            self._waiting -= 1

    def _readable(self) -> bool:
        return bool(self._events) or self._terminal is not None or self._released

    def _settle(self) -> None:
        if self._on_settled is not None:
            self._on_settled()
