"""Where the host's time goes in a decode round: the last few thousand, in whole."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_KEPT = 4096
_MICRO = 1e-3
_ROW = struct.Struct("q?5q")
"""The fields of a RoundTiming in their order; times in nanoseconds."""


@dataclass(frozen=True, slots=True)
class RoundTiming:
    """The cycle in which one decode round was settled; host microseconds.

    ``engine`` is scheduling and permits, ``submit`` the launch calls and a look at what has arrived
    since, ``post`` collecting without the wait, and commit, ``output`` interpretation, books and
    publication, ``wait`` the time that the host was blocked on the device. ``rows`` is the size of
    the round; ``alone`` says that neither a control unit nor a chunk was settled in the same cycle.
    """

    rows: int
    alone: bool
    engine: float
    submit: float
    post: float
    output: float
    wait: float

    @property
    def host(self) -> float:
        """Microseconds in which the host worked."""
        return self.engine + self.submit + self.post + self.output


class CycleTimes:
    """What the units of one cycle took to settle, in nanoseconds. Reset by the cycle."""

    __slots__ = ("collect", "commit", "rows", "units", "waited")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.collect = self.commit = self.rows = self.units = 0
        self.waited = 0.0


class RoundTimings:
    """A ring of the last rounds. Written by the worker, read by anybody."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self.reset()

    def reset(self) -> None:
        """Forget all rounds."""
        self._rows = bytearray(_ROW.size * self._kept)
        self._added = 0

    def add(self, times: CycleTimes, engine: int, submit: int, settle: int) -> None:
        """Nanoseconds of one cycle: ``settle`` from the first collect to the last publication."""
        waited = int(times.waited * 1e9)
        post = times.collect - waited + times.commit
        output = settle - times.collect - times.commit
        place = self._added % self._kept * _ROW.size
        alone = times.units == 1
        _ROW.pack_into(self._rows, place, times.rows, alone, engine, submit, post, output, waited)
        self._added += 1

    def snapshot(self) -> tuple[RoundTiming, ...]:
        """The rounds kept, oldest first."""
        rows, added = bytes(self._rows), self._added
        first = max(0, added - self._kept)
        kept = (_ROW.unpack_from(rows, n % self._kept * _ROW.size) for n in range(first, added))
        return tuple(
            RoundTiming(count, alone, *(part * _MICRO for part in parts))
            for count, alone, *parts in kept
        )
