"""Which stretches of a sequence ran as chunks; what lies between them ran token by token.

The two routes, and chunks cut at other places, give results that differ in their last bits. Whoever
executes the same tokens again, or continues from their state, has to know how they ran.
"""

from __future__ import annotations

from bisect import bisect_right

from ninfer_core.contract.spans import ExecutedSpan


class Trail:
    """Chunks in the order of their positions. Decode rounds leave no entry."""

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, start: int, stop: int) -> None:
        """Tokens ``start .. stop - 1`` ran as one chunk."""
        self._starts.append(start)
        self._stops.append(stop)

    def until(self, frontier: int) -> Trail:
        """The same up to a frontier, at which no chunk is cut."""
        cut = Trail()
        count = bisect_right(self._stops, frontier)
        cut._starts, cut._stops = self._starts[:count], self._stops[:count]
        return cut

    def stepped(self, frontier: int) -> bool:
        """Whether the token at ``frontier`` ran alone."""
        place = bisect_right(self._starts, frontier) - 1
        return place < 0 or self._stops[place] <= frontier

    def stop_after(self, frontier: int) -> int | None:
        """Where the chunk at ``frontier`` ended, or where the next one began; None past them all.

        ``frontier`` lies in no chunk but at its start.
        """
        place = bisect_right(self._stops, frontier)
        if place == len(self._stops):
            return None
        start = self._starts[place]
        return self._stops[place] if start == frontier else start

    def spans(self, frontier: int) -> tuple[ExecutedSpan, ...]:
        """The whole way from 0 to ``frontier``, at which no chunk is cut."""
        spans: list[ExecutedSpan] = []
        reached = 0
        for start, stop in zip(self._starts, self._stops, strict=True):
            if stop > frontier:
                break
            if start > reached:
                spans.append(ExecutedSpan(start, stepped=True))
            spans.append(ExecutedSpan(stop, stepped=False))
            reached = stop
        if frontier > reached:
            spans.append(ExecutedSpan(frontier, stepped=True))
        return tuple(spans)
