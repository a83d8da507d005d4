"""From measured times to the prefill chunk that keeps tokens of other requests coming."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_core.engine.start_options import InvalidOption

MARGIN = 1.1
"""What a gap may take beyond the median that was measured."""


@dataclass(frozen=True, slots=True)
class GapTable:
    """How long a stream waits for its next token while a prompt is read beside it.

    ``gaps[i][j]`` is the median time, in seconds, from one decode round to the next with a chunk of
    ``sizes[j]`` tokens in between that starts ``depths[i]`` tokens into its prompt or behind that;
    infinite where it was not tried. Depths ascend from 0. ``rows`` streams decode at once, each of
    which takes ``seconds_per_token`` longer for every token of its own context; ``round_seconds``
    is one round of theirs alone, while they are short. ``context`` is the most tokens of one
    request.
    """

    sizes: tuple[int, ...]
    depths: tuple[int, ...]
    gaps: tuple[tuple[float, ...], ...]
    rows: int
    seconds_per_token: float
    context: int
    round_seconds: float

    def worst(self, size: int) -> float:
        """Seconds of the longest gap with chunks of ``size``, every context as long as it can be,
        and a margin.

        Beyond the deepest measurement the line from the root to it goes on, as attention does.
        """
        column = [row[self.sizes.index(size)] for row in self.gaps]
        if math.inf in column:
            return math.inf
        return MARGIN * (max(*column, self._at_the_end(column)) + self.long_rows())

    def described(self) -> dict[str, Any]:
        """For reports: milliseconds by chunk size, of those that were tried at every depth."""
        worst = {size: self.worst(size) for size in self.sizes}
        return {
            "depths": list(self.depths),
            "gap_ms": {size: _ms(gap) for size, gap in worst.items() if gap < math.inf},
            "measured_ms": [[_ms(gap) for gap in row if gap < math.inf] for row in self.gaps],
            "rows": self.rows,
            "round_ms": _ms(self.round_seconds),
            "long_rows_ms": _ms(self.long_rows()),
            "margin": MARGIN,
        }

    def long_rows(self) -> float:
        """Seconds that a round takes longer when every row of it is as long as it can be."""
        return self.rows * self.context * self.seconds_per_token

    def _at_the_end(self, column: list[float]) -> float:
        if len(column) < 2:
            return column[-1]
        slope = (column[-1] - column[0]) / (self.depths[-1] - self.depths[0])
        return column[-1] + max(0.0, slope) * max(0, self.context - self.depths[-1])


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


def choose_chunk(table: GapTable, bound_ms: float) -> int:
    """The largest chunk whose worst gap is at most ``bound_ms``.

    Raises InvalidOption naming the smallest gap that can be had when none is.
    """
    worst: Mapping[int, float] = {size: 1e3 * table.worst(size) for size in table.sizes}
    fitting = [size for size, gap in worst.items() if gap <= bound_ms]
    if fitting:
        return max(fitting)
    size = min(worst, key=lambda size: worst[size])
    raise InvalidOption(
        f"max_gap_ms is {bound_ms:g}; the smallest gap that this model reaches here is "
        f"{worst[size]:.1f} ms, with chunks of {size} tokens at a context of {table.context}: "
        + _shares(table, size),
        hint=f"give --max-gap-ms {math.ceil(worst[size])} or more, or lower --max-context or "
        "--max-concurrency",
    )


def _shares(table: GapTable, size: int) -> str:
    """What the worst gap consists of."""
    alone, longer, worst = table.round_seconds, table.long_rows(), table.worst(size)
    chunk = max(0.0, worst / MARGIN - alone - longer)
    return (
        f"{1e3 * alone:.1f} ms for a round of {table.rows} short contexts, {1e3 * longer:.1f} ms "
        f"more once these are long, {1e3 * chunk:.1f} ms for the chunk, and a margin of "
        f"{MARGIN - 1:.0%}"
    )


def chunk_sizes(most: int, length: int) -> tuple[int, ...]:
    """Sizes to measure, ascending: powers of two from 64 up to ``most``, and ``most`` itself, all
    below ``length``."""
    top = max(1, min(most, length - 1))
    powers = [1 << place for place in range(6, top.bit_length())]
    return tuple(sorted({*powers, top}))
