"""A clock that stands until a test moves it."""

from __future__ import annotations


class FakeClock:
    """Call it for the time in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
