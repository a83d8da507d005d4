"""The events of one request on their way from the worker to its consumer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.events import Failed, Finished, GenerationEvent

Terminal = Finished | Failed
_log: Final = logging.getLogger("ninfer.engine")


class Response:
    """Event queue, end, and the two facts that together return the request's capacity.

    The worker calls :meth:`put` and :meth:`end`, the consumer :meth:`take` and :meth:`release`.
    ``on_settled`` runs once, when the response is done and the consumer has let go of it. The queue
    ends with None once it is released.
    """

    def __init__(self, on_settled: Callable[[], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._events: SimpleQueue[GenerationEvent | None] = SimpleQueue()
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
        """Publish ``events``; a consumer that waits is woken."""
        if self._terminal is not None:
            raise EngineFailure("an event was published after the end of its request")
        if self._released:
            return
        for event in events:
            self._events.put(event)
        self._tell(self._wake)

    def end(self, event: Terminal, failure: EngineFailure | None = None) -> None:
        """Publish the one end. Raises EngineFailure on a second one."""
        with self._lock:
            if self._terminal is not None:
                raise EngineFailure("a request was ended twice")
            self._terminal = event
            self._failure = failure
            self._events.put(event)
            settled, wake = self._released, self._wake
        if settled:
            self._settle()
        else:
            self._tell(wake)

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called after every publication, and at once when something is there. It is
        called by whoever publishes, so it must be quick, and may be called for nothing. What it
        raises there is logged: a consumer's fault ends nobody's request."""
        self._wake = wake
        if self._released or not self._events.empty():
            wake()

    def take(self, timeout: float | None = None) -> GenerationEvent | None:
        """The next event, None after the end. Taking the end releases the consumer.

        Raises TimeoutError when no event came within ``timeout`` seconds.
        """
        if self._released:
            return None
        try:
            event = self._events.get(timeout=timeout)
        except Empty:
            raise TimeoutError(f"no event within {timeout} s") from None
        if event is None:
            self._events.put(None)  # for the next one that waits
        elif event is self._terminal:
            self.release()
        return event

    def release(self) -> None:
        """The consumer reads no further. Idempotent."""
        with self._lock:
            if self._released:
                return
            self._released = True
            settled = self._terminal is not None
        with suppress(Empty):
            while True:
                self._events.get_nowait()
        self._events.put(None)
        if settled:
            self._settle()

    def _tell(self, wake: Callable[[], None] | None) -> None:
        if wake is None:
            return
        try:
            wake()
        except Exception:
            _log.exception("a consumer raised when it was told of an event")

    def _settle(self) -> None:
        if self._on_settled is not None:
            self._on_settled()
