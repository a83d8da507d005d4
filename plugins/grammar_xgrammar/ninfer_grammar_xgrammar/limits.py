"""How long a source may take until it is a grammar, counted on the thread that works on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOWERING_SECONDS = 1.0
"""For a source to become a grammar; ordinary ones take milliseconds."""


class TooLarge(Exception):
    """The source would take too long. ``str`` says why."""


_TURN_SECONDS = 0.0005
_PAUSE_SECONDS = 0.0002
"""A worker beside this thread needs the interpreter many times a round, and would wait a whole
switching interval each time; so this thread lets go of it often, by itself."""


class _Work(threading.local):
    deadline: float | None = None
    turn: float = 0.0


_WORK = _Work()


@contextmanager
def limited(seconds: float = LOWERING_SECONDS) -> Iterator[None]:
    """Within, :func:`check` raises TooLarge once ``seconds`` have passed."""
    before, _WORK.deadline = _WORK.deadline, time.monotonic() + seconds
    try:
        yield
    finally:
        _WORK.deadline = before


def check() -> None:
    """Called by everything that may take long."""
    if _WORK.deadline is None:
        return
    now = time.monotonic()
    if now > _WORK.deadline:
        raise TooLarge(f"it is not worked out within {LOWERING_SECONDS:g} seconds")
    if now > _WORK.turn + _TURN_SECONDS:
        time.sleep(_PAUSE_SECONDS)
        _WORK.turn = time.monotonic()
