"""What a caller holds of a submitted request."""

from __future__ import annotations

import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator

from ninfer_core.closing import Closing
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.events import Finished, GenerationEvent, GenerationResult
from ninfer_core.engine.lifecycle import Abandon, Cancel, Lifecycle
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.response import Response, Terminal


class Consumer(Closing):
    """Reading a response to its end: what handles of both kinds of engine share."""

    def __init__(self, response: Response) -> None:
        self._response = response

    def next_event(self, timeout: float | None = None) -> GenerationEvent | None:
        """The next event; None after the last. Raises TimeoutError when none came in time."""
        event = self._response.take(timeout)
        if self._response.released:
            self._let_go()
        return event

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called, from any thread, whenever there may be something to read; at once
        when there is now."""
        self._response.subscribe(wake)

    def __iter__(self) -> Iterator[GenerationEvent]:
        while (event := self.next_event()) is not None:
            yield event

    def result(self, timeout: float | None = None) -> GenerationResult:
        """Wait up to ``timeout`` seconds for the end, skipping deltas.

        Raises the request's error, EngineFailure when the engine died, TimeoutError, or
        RuntimeError on a handle that was closed before the end.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self.next_event(until and max(0.0, until - time.monotonic())) is not None:
            pass
        terminal = self._response.terminal
        if terminal is None:
            raise RuntimeError("the handle was closed before its request ended")
        return _unwrap(terminal, self._response.failure)

    @abstractmethod
    def close(self) -> None:
        """Stop consuming."""

    @abstractmethod
    def _let_go(self) -> None:
        """The response was read to its end."""


class RequestHandle(Consumer):
    """One submitted request; implements ``contract.engine.GenerationHandle``.

    Letting go of the handle, by :meth:`close`, by leaving the ``with`` block or by dropping the
    last reference, abandons a request that still runs.
    """

    def __init__(self, record: RequestRecord, lifecycle: Lifecycle) -> None:
        super().__init__(record.response)
        self._record = record
        self._lifecycle = lifecycle
        self._finalizer = weakref.finalize(self, _abandon, record, lifecycle)
        self._finalizer.atexit = False

    @property
    def request_id(self) -> str:
        return self._record.request_id

    @property
    def prompt_tokens(self) -> int:
        return self._record.prompt_tokens

    @property
    def notes(self) -> tuple[str, ...]:
        """What submit changed on the way, as in ``GenerationStart.notes``."""
        return self._record.notes

    def cancel(self) -> None:
        """Ask for the end at the next boundary; the result keeps what was committed."""
        self._record.cancel_requested = True
        self._lifecycle.nudge(Cancel(self._record))

    def close(self) -> None:
        """Stop consuming; cancels a request that still runs. Idempotent."""
        if not self._response.done:
            self.cancel()
        self._let_go()
        self._response.release()

    def forget(self) -> None:
        """The request was never posted: dropping this handle means nothing."""
        self._let_go()

    def _let_go(self) -> None:
        self._finalizer.detach()


def _unwrap(terminal: Terminal, failure: EngineFailure | None) -> GenerationResult:
    if failure is not None:
        raise EngineFailure(failure.message) from failure
    if isinstance(terminal, Finished):
        return terminal.result
    raise terminal.error


def _abandon(record: RequestRecord, lifecycle: Lifecycle) -> None:
    record.cancel_requested = True
    lifecycle.nudge(Abandon(record))
