"""How far a conversion has come, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Phase = Literal["hash", "convert", "publish"]


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """``done`` of ``total`` bytes of a phase; ``item`` is the file or tensor at work."""

    phase: Phase
    item: str
    done: int
    total: int


class ConvertProgress(Protocol):
    """Called in the converting thread, many times per second; must return quickly."""

    def __call__(self, event: ProgressEvent) -> None: ...


def no_progress(event: ProgressEvent) -> None:
    """Shows nothing."""


class PhaseMeter:
    """Turns byte counts of one phase into events."""

    def __init__(self, phase: Phase, total: int, report: ConvertProgress) -> None:
        self._phase = phase
        self._total = total
        self._report = report
        self._done = 0

    def __call__(self, item: str, count: int) -> None:
        self._done += count
        self._report(ProgressEvent(self._phase, item, self._done, self._total))
