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


class _Work(threading.local):
    deadline: float | None = None


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
    if _WORK.deadline is not None and time.monotonic() > _WORK.deadline:
        raise TooLarge(f"it is not worked out within {LOWERING_SECONDS:g} seconds")
