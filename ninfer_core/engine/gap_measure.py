"""What a stream waits for its next token while a prompt is read, by size of the chunks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

from ninfer_core.contract.program import Program
from ninfer_core.engine.gap_driver import NoRoom, Prepare, Row, UnitDriver
from ninfer_core.engine.gap_table import GapTable, chunk_sizes

REPEATS = 3
PATIENCE = 10.0
"""Seconds after which no deeper context is measured, once there are two depths."""

_LAST_CHUNKS = 4
_SHORT, _NEW = 4, 64
"""Tokens of the prompts and answers that decode meanwhile."""


class GapMeasure:
    """One sequence reads a prompt, the others decode, as when requests are served. On the worker,
    before the engine takes requests. ``bound`` is in seconds: once a chunk takes longer, larger
    ones are not tried there."""

    def __init__(
        self, program: Program, prepare: Prepare, clock: Callable[[], float], bound: float
    ) -> None:
        limits = program.limits
        self._program = program
        self._clock = clock
        self._bound = bound
        self._driver = UnitDriver(program, prepare, clock)
        self._context = limits.max_context
        self._most = limits.prefill_chunk
        self._length = max(2, limits.max_context - 2)
        self._count = limits.max_concurrency - 1
        self._rows: list[Row] = []
        self._reader: Row | None = None

    def table(self) -> GapTable:
        """Measure the sizes at several depths; nothing is resident afterwards, and the chunk is
        what it was. Raises NoRoom when not even the shortest prompts have room together. Any other
        failure is the engine's end and leaves all as it is."""
        try:
            table = self._measured()
        except NoRoom:
            self._leave()
            raise
        self._leave()
        return table

    def _measured(self) -> GapTable:
        sizes = chunk_sizes(self._most, self._length)
        self._rows = [self._short() for _ in range(self._count)]
        depths, gaps = self._by_depth(sizes)
        slope = self._seconds_per_token(depths[-1])
        return GapTable(sizes, depths, gaps, self._count, slope, self._context)

    def _leave(self) -> None:
        """No unit is in flight: every step takes what it launched, or is refused before that."""
        self._driver.end_all()
        self._program.limit_chunk(self._most)

    def _by_depth(
        self, sizes: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[tuple[float, ...], ...]]:
        started, measured = self._clock(), dict[int, tuple[float, ...]]()
        for depth in self._depths():
            if len(measured) > 1 and self._clock() - started > PATIENCE:
                break
            try:
                measured[depth] = self._at(depth, sizes)
            except NoRoom:
                if not measured:
                    raise
                break
        return tuple(measured), tuple(measured.values())

    def _at(self, depth: int, sizes: Sequence[int]) -> tuple[float, ...]:
        gaps: list[float] = []
        while len(gaps) < len(sizes) and (not gaps or gaps[-1] <= self._bound):
            gaps.append(self._gap(sizes[len(gaps)], depth))
        return (*gaps, *[math.inf] * (len(sizes) - len(gaps)))

    def _depths(self) -> list[int]:
        """The root, as deep as leaves room for some chunks, and half of that; in whole chunks."""
        deepest = max(0, self._length - _LAST_CHUNKS * self._most)
        return sorted({deepest * part // 2 // self._most * self._most for part in range(3)})

    def _gap(self, size: int, depth: int) -> float:
        """The longest of ``REPEATS`` times from one round to the next with a chunk in between; one
        more before them does not count."""
        took: list[float] = []
        before, seen = 0, 0.0
        reader = self._reader_at(depth, size)
        while len(took) <= REPEATS:
            self._refresh()
            if reader.length + size < self._length:
                over, tokens = self._driver.round_and_chunk(self._rows, reader)
            else:
                over, tokens = self._driver.round(self._rows), 0
            if before == size:
                took.append(over - seen)
            seen, before = over, tokens
            if not tokens:
                reader = self._reader_at(depth, size)
        return max(took[1:])

    def _reader_at(self, depth: int, size: int) -> Row:
        """One that stands at ``depth`` or behind it with a chunk of ``size`` before it."""
        reader = self._reader
        if reader is not None and reader.length + size >= self._length:
            self._driver.end(reader)
            reader = None
        reader = self._reader = reader or self._driver.bind(self._length, 1)
        self._program.limit_chunk(self._most)
        while reader.length < depth:
            self._driver.read(reader)
        self._program.limit_chunk(size)
        return reader

    def _seconds_per_token(self, depth: int) -> float:
        """How much longer a round takes for each token of the context of a row."""
        if self._reader is not None:
            self._driver.end(self._reader)
        self._refresh()
        if not depth:
            return 0.0
        short = self._round_seconds(self._rows[0])
        self._program.limit_chunk(self._most)
        deep = self._driver.decoding(depth, REPEATS + 3)
        return max(0.0, self._round_seconds(deep) - short) / depth

    def _round_seconds(self, row: Row) -> float:
        times = [self._driver.round([row]) for _ in range(REPEATS + 2)]
        return statistics.median(later - earlier for earlier, later in pairwise(times[1:]))

    def _short(self) -> Row:
        return self._driver.decoding(_SHORT, min(_NEW, self._context - _SHORT))

    def _refresh(self) -> None:
        """Rows that are near their end begin again."""
        for place, row in enumerate(self._rows):
            if row.most - row.length < REPEATS + 3:
                self._driver.end(row)
                self._rows[place] = self._short()
