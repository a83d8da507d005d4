"""Times of chunks of several sizes, taken by turns, and which are still to be taken."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

REPEATS = 5
"""Times of which the middle one counts."""

SETTLING = 1
"""Times before them that do not count: first units of a size at a depth set themselves up."""

_ENOUGH = SETTLING + REPEATS


class Times:
    """Seconds by size, ascending. Nothing behind a size that is over ``bound`` is wanted, and one
    that is over it by its median is taken again, since it may have been the machine."""

    def __init__(self, sizes: Sequence[int], bound: float) -> None:
        self._times: dict[int, list[float]] = {size: [] for size in sizes}
        self._bound = bound

    def add(self, size: int, seconds: float) -> None:
        self._times[size].append(seconds)

    def missing(self) -> list[int]:
        """The sizes to be timed once more; empty when all is known. A size joins once the one
        before it was within the bound."""
        found = []
        for size, times in self._times.items():
            if len(times) < self._wanted(times):
                found.append(size)
            if not times or min(times) > self._bound:
                break
        return found

    def medians(self) -> tuple[float, ...]:
        """Of the sizes up to the first that is over the bound, once nothing is missing."""
        medians: list[float] = []
        for times in self._times.values():
            medians.append(_median(times))
            if medians[-1] > self._bound:
                break
        return tuple(medians)

    def _wanted(self, times: Sequence[float]) -> int:
        over = len(times) >= _ENOUGH and statistics.median(times[SETTLING:_ENOUGH]) > self._bound
        return _ENOUGH + REPEATS * over


def _median(times: Sequence[float]) -> float:
    parts = [times[SETTLING:_ENOUGH], times[_ENOUGH:]]
    return min(statistics.median(part) for part in parts if part)
