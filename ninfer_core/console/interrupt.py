"""Ctrl-C as a flag that is looked at between events, and a loading step that it can leave."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Generic, NoReturn, TypeVar

T = TypeVar("T")
_POLL: Final = 0.05
_GRACE: Final = 0.5
INTERRUPTED: Final = 130


class Interrupted(BaseException):
    """Ctrl-C came while something was being prepared; the command ends with :func:`leave`."""


class Interrupt:
    """While entered, SIGINT sets ``requested`` in place of raising KeyboardInterrupt.

    An exception out of a signal handler could stop the engine's own locks half way. A second
    Ctrl-C ends the process at once. Enter it in the main thread.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> Interrupt:
        self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def check(self) -> None:
        """For callbacks of the loading thread, so that it cleans up. Raises Interrupted."""
        if self.requested:
            raise Interrupted

    def wait_for(self, work: Callable[[], T]) -> T:
        """Do ``work`` in a thread and wait for it.

        Raises Interrupted soon after Ctrl-C, whether or not the thread could stop by then.
        """
        outcome = _Outcome(work)
        thread = threading.Thread(target=outcome.run, name="ninfer-load", daemon=True)
        thread.start()
        while thread.is_alive() and not self.requested:
            thread.join(_POLL)
        if self.requested:
            thread.join(_GRACE)
            raise Interrupted
        return outcome.value()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            leave()
        self.requested = True


class _Outcome(Generic[T]):
    """The value or the error of work done in another thread."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._values: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._values.append(self._work())
        except BaseException as error:
            self._error = error

    def value(self) -> T:
        if self._error is not None:
            raise self._error
        return self._values[0]


def leave() -> NoReturn:
    """End the process now with what was printed; a long step of the engine is not waited for."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, RuntimeError):
            stream.flush()
    os._exit(INTERRUPTED)
