"""How long masks may take to work out: the worker waits for them in every round.

Ordinary grammars take 0.1 ms a mask over 248,000 tokens and rarely 5 ms; ambiguous ones that count
sets of nearly everything take a thousand times as long. Time is that of the thread's processor, so
that a busy machine refuses nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MASK_SECONDS = 0.01
"""A mask's share, on average."""
GRACE_SECONDS = 0.5
"""What a request may take beyond that."""
_WALKS, _STEPS, _SLOW_STEPS = 2, 8, 4
"""A probe, and how many of its masks may not be slow: now and then one is, on a busy machine."""


class TooSlow(Exception):
    """The masks of a grammar take too long."""


class Pace:
    """What one request's masks took so far; shared by its forks."""

    __slots__ = ("_count", "_spent", "_started")

    def __init__(self) -> None:
        self._count = 0
        self._spent = 0.0
        self._started = 0.0

    def begin(self) -> None:
        """Before masks are worked out. Raises TooSlow."""
        if self._spent > GRACE_SECONDS + MASK_SECONDS * self._count:
            raise TooSlow(f"{self._count} masks took {self._spent:.1f} s")
        self._started = time.thread_time()

    def end(self, masks: int) -> None:
        self._count += masks
        self._spent += time.thread_time() - self._started


def probe(
    open_matcher: Callable[[], Any],
    words: int,
    ends: Sequence[int] = (),
    mask_seconds: float | None = None,
) -> None:
    """Walk along allowed tokens at random, the same ones every time. Raises TooSlow.

    ``words`` is the size of a mask, u32; ``ends`` are tokens that end the text; ``mask_seconds``
    is what a mask may take, :data:`MASK_SECONDS` if left out. Not for a thread that others wait
    for.
    """
    most = MASK_SECONDS if mask_seconds is None else mask_seconds
    rng, mask, slow = random.Random(0), np.zeros(words, dtype=np.uint32), 0
    for _ in range(_WALKS):
        matcher = open_matcher()
        for _ in range(_STEPS):
            started = time.thread_time()
            matcher.fill(mask)
            slow += time.thread_time() - started > most
            if slow == _SLOW_STEPS:
                raise TooSlow(f"a mask takes more than {most:g} s")
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
            bits[list(ends)] = 0
            allowed = np.flatnonzero(bits)
            if not len(allowed) or not matcher.accept_token(int(rng.choice(allowed))):
                break
