"""How long a source may take until it is a grammar, counted on the thread that works on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ninfer_core.contract.errors import Overloaded

LOWERING_SECONDS = 0.6
"""Of work, for a source to become a grammar; ordinary ones take milliseconds."""
WAITING_SECONDS = 4.0
"""In all, with the time in which other threads and processes have the processor. It says nothing of
the source: who asked may try again."""


class TooLarge(Exception):
    """The source would take too long. ``str`` says why."""


_TURN_SECONDS = 0.0005
_PAUSE_SECONDS = 0.0002
"""A worker beside this thread needs the interpreter many times a round, and would wait a whole
switching interval each time; so this thread lets go of it often, by itself."""
_TURN_SHARE = 0.25
"""On a busy machine a pause takes long; a turn takes at least this share of the last one."""


class _Work(threading.local):
    deadline: float | None = None
    most: float = 0.0
    turn: float = 0.0


_WORK = _Work()


@contextmanager
def limited() -> Iterator[None]:
    """Within, :func:`check` raises TooLarge once the work is too much, Overloaded once it waited
    too long."""
    before = _WORK.deadline, _WORK.most
    _WORK.deadline = time.monotonic() + WAITING_SECONDS
    _WORK.most = time.thread_time() + LOWERING_SECONDS
    try:
        yield
    finally:
        _WORK.deadline, _WORK.most = before


def check() -> None:
    """Called by everything that may take long."""
    if _WORK.deadline is None:
        return
    now = time.monotonic()
    if now < _WORK.turn:
        return
    if time.thread_time() > _WORK.most:
        raise TooLarge(f"it is not worked out within {LOWERING_SECONDS:g} seconds")
    if now > _WORK.deadline:
        raise Overloaded(
            f"the form was not worked out within {WAITING_SECONDS:g} seconds: others are at work",
            hint="try again",
        )
    time.sleep(_PAUSE_SECONDS)
    back = time.monotonic()
    _WORK.turn = back + max(_TURN_SECONDS, _TURN_SHARE * (back - now))
