"""The serving process's end: open requests and calls by number, and the life of the child."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from ninfer_core.contract.engine import Availability, AvailabilityState, LoadSummary
from ninfer_core.contract.errors import EngineFailure, Unavailable
from ninfer_core.contract.events import Failed, Finished
from ninfer_core.engine.remote.channel import Channel
from ninfer_core.engine.remote.messages import (
    Accepted,
    Answer,
    Call,
    Cancel,
    Close,
    Hello,
    Logged,
    Progress,
    Ready,
    Release,
    StartFailed,
    State,
    Submit,
)
from ninfer_core.engine.remote.process import ChildProcess
from ninfer_core.engine.remote.wire_errors import unpack_error
from ninfer_core.engine.remote.wire_events import Entry, unpack_event
from ninfer_core.engine.response import Response

CLOSE_SECONDS: Final = 15.0
"""How long a child may take to close its engine before it is killed."""
EXIT_SECONDS: Final = 5.0
"""How long one that has closed it may take to end."""
_DEATH_SECONDS: Final = 1.0
"""How long one whose connection broke may take to end."""
_OVER: Final = frozenset({AvailabilityState.FAILED, AvailabilityState.CLOSED})


class Link:
    """Thread safe. Knows nothing of the engine object that uses it, so that one can be dropped."""

    def __init__(self, hello: Hello, progress: Callable[[str], None]) -> None:
        """Start the process and greet it; :meth:`wait_ready` waits for the answer."""
        self._progress: Callable[[str], None] | None = progress
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._responses: dict[int, Response] = {}
        self._answers: dict[int, Future[Any]] = {}
        self._held: set[int] = set()
        self._dropped: deque[Response] = deque()
        self._availability = Availability(AvailabilityState.STARTING)
        self._ready: Future[LoadSummary] = Future()
        self._closing = False
        self._gone = False
        self.process = ChildProcess()
        self._channel = Channel(self.process.sock, self._receive, self._lost)
        self._channel.start()
        self._channel.send(hello)

    def wait_ready(self) -> LoadSummary:
        """Raises what opening the engine raised there, or EngineFailure when the child died."""
        try:
            return self._ready.result()
        finally:
            self._progress = None

    @property
    def availability(self) -> Availability:
        return self._availability

    def unavailable(self) -> Unavailable:
        now = self._availability
        reason = f": {now.reason}" if now.reason else ""
        return Unavailable(f"the engine is {now.state.value}{reason}")

    def drain(self) -> None:
        """Refuse new requests from now on."""
        with self._lock:
            if self._availability.ready:
                self._availability = Availability(AvailabilityState.DRAINING)

    def number(self) -> int:
        """A number for the next request."""
        return next(self._numbers)

    def submit(self, message: Submit, response: Response) -> Accepted:
        """Post a request whose events go to ``response``, and wait for the answer.

        Raises what submitting raises in the child; nothing is left of the request then.
        """
        number = message.number
        with self._lock:
            if not self._availability.ready:
                raise self.unavailable()
            answer = self._answers[number] = Future[Any]()
            self._responses[number] = response
            self._held.add(number)
        try:
            self._channel.send(message)
            accepted: Accepted = answer.result()
            return accepted
        except BaseException as error:
            with self._lock:
                self._responses.pop(number, None)
                self._answers.pop(number, None)
            if isinstance(error, Exception):
                self._held.discard(number)
            else:
                self.release(number)
            raise

    def call(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Have the child call ``method`` of its engine. Raises what that raises, Unavailable, or
        TimeoutError after ``timeout`` seconds."""
        with self._lock:
            if self._gone:
                raise self.unavailable()
            number = self.number()
            answer = self._answers[number] = Future[Any]()
        self._channel.send(Call(number, method, arguments))
        try:
            return answer.result(timeout)
        finally:
            self._answers.pop(number, None)

    def cancel(self, number: int) -> None:
        self._channel.send(Cancel(number))

    def release(self, number: int) -> None:
        """The consumer of ``number`` has let go; said once. Re-entrant: finalisers come here."""
        try:
            self._held.remove(number)
        except KeyError:
            return
        if not self._gone:
            self._channel.send(Release(number))

    def drop(self, number: int, response: Response) -> None:
        """The handle of ``number`` is gone, and with it who could read ``response``. That is
        released when a thread comes by that may take locks. Re-entrant as :meth:`release`."""
        self.release(number)
        self._dropped.append(response)

    def settle_dropped(self) -> None:
        """Release the responses whose handles were dropped."""
        while self._dropped:
            self._dropped.popleft().release()

    def close(self) -> None:
        """End every request, the engine and its process. A child that does not close in
        :data:`CLOSE_SECONDS` is killed."""
        self._closing = True
        self._channel.send(Close())
        self._channel.join(CLOSE_SECONDS + EXIT_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the process now, if it has not ended, and every request with it."""
        self._closing = True
        self.process.end(0.0)
        self._channel.abort()
        self._channel.join(EXIT_SECONDS)

    def _receive(self, message: Any) -> None:
        if isinstance(message, list):
            self._round(message)
        elif isinstance(message, Answer):
            self._answer(message)
        elif isinstance(message, State):
            with self._lock:
                self._availability = message.availability
        elif isinstance(message, Progress):
            if self._progress is not None:
                self._progress(message.text)
        elif isinstance(message, Logged):
            logging.getLogger(message.logger).log(message.level, "%s", message.text)
        elif isinstance(message, Ready):
            self._availability = Availability(AvailabilityState.READY)
            self._ready.set_result(message.summary)
        elif isinstance(message, StartFailed):
            self._closing = True
            self._ready.set_exception(unpack_error(message.error))
        if self._dropped:
            self.settle_dropped()

    def _round(self, entries: list[Entry]) -> None:
        for entry in entries:
            response = self._responses.get(entry[0])
            if response is None:
                continue
            event, failure = unpack_event(entry)
            if isinstance(event, Finished | Failed):
                del self._responses[entry[0]]
                response.end(event, failure)
            else:
                response.put(event)

    def _answer(self, message: Answer) -> None:
        with self._lock:
            answer = self._answers.pop(message.number, None)
        if answer is None:
            return
        if message.error is None:
            answer.set_result(message.value)
        else:
            answer.set_exception(unpack_error(message.error))

    def _lost(self) -> None:
        """On the reading thread, once: nothing comes any more."""
        self.process.end(EXIT_SECONDS if self._closing else _DEATH_SECONDS)
        failure = self._failure()
        with self._lock:
            self._gone = True
            if self._availability.state not in _OVER:
                state = AvailabilityState.FAILED if failure else AvailabilityState.CLOSED
                self._availability = Availability(state, str(failure) if failure else None)
            responses, self._responses = self._responses, {}
            answers, self._answers = self._answers, {}
        error = Unavailable(f"the engine failed: {failure}" if failure else "the engine was closed")
        for response in responses.values():
            response.end(Failed(error), failure)
        for answer in answers.values():
            answer.set_exception(self.unavailable())
        if not self._ready.done():
            self._ready.set_exception(failure or self.unavailable())

    def _failure(self) -> EngineFailure | None:
        if self._closing:
            return None
        how = self.process.describe_end()
        return EngineFailure(f"the engine's process {self.process.pid} {how}")
