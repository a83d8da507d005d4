"""What a stream waits for its next token while a prompt is read, by size of the chunks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

from ninfer_core.contract.program import Program
from ninfer_core.engine.gap_driver import NoRoom, Prepare, Row, UnitDriver
from ninfer_core.engine.gap_table import GapTable, chunk_sizes
from ninfer_core.engine.gap_times import REPEATS, SETTLING, Times

SETTLED = 0.5
"""Seconds before all of that in which chunks are read and nothing counts: a machine that had little
to do while the engine started is slow at first, and a guarantee is about later chunks."""

PATIENCE = 10.0
"""Seconds after which no deeper context is measured, once there are two depths."""

_ROOM = 2 * (SETTLING + REPEATS + 1)
"""Largest chunks that all sizes together read, each size being half of the next, and one that is
taken again."""

_FIRST_ROUNDS = 2
"""Rounds of a kind that do not count."""

_ROUNDS = _FIRST_ROUNDS + REPEATS + 1
"""Rounds that are timed with nothing in between."""

_SHORT = 4
"""Tokens of the prompts of those that decode meanwhile."""


def least_context(draft_tokens: int) -> int:
    """Tokens of a context in which rounds can be timed."""
    return 2 * (_SHORT + _ROUNDS * (1 + draft_tokens))


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
        self._stride = 1 + limits.draft_tokens
        self._new = min(8 * _ROUNDS * self._stride, limits.max_context - _SHORT)
        self._rows: list[Row] = []
        self._alone = 0.0
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
        self._settle(sizes)
        self._drop_reader()
        self._refresh(_ROUNDS)
        self._alone = min(self._rounds(self._rows))
        depths, gaps = self._by_depth(sizes)
        slope = self._seconds_per_token(depths[-1])
        return GapTable(sizes, depths, gaps, self._count, slope, self._context, self._alone)

    def _leave(self) -> None:
        """No unit is in flight: every step takes what it launched, or is refused before that."""
        self._driver.end_all()
        self._program.limit_chunk(self._most)

    def _settle(self, sizes: Sequence[int]) -> None:
        until = self._clock() + SETTLED
        while True:
            for size in sizes:
                if self._gap(size, 0) > self._bound:
                    break
            if self._clock() >= until:
                return

    def _by_depth(
        self, sizes: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[tuple[float, ...], ...]]:
        """Sizes that are over the bound at one depth are not tried at deeper ones."""
        started, measured = self._clock(), dict[int, tuple[float, ...]]()
        tried = sizes
        for depth in self._depths():
            if len(measured) > 1 and self._clock() - started > PATIENCE:
                break
            try:
                gaps = self._at(depth, tried)
            except NoRoom:
                if not measured:
                    raise
                break
            measured[depth] = (*gaps, *[math.inf] * (len(sizes) - len(gaps)))
            tried = sizes[: max(1, sum(gap <= self._bound for gap in gaps))]
        return tuple(measured), tuple(measured.values())

    def _at(self, depth: int, sizes: Sequence[int]) -> tuple[float, ...]:
        """Median gaps of the sizes up to the first that is over the bound. They take turns, so that
        what disturbs the machine for a while falls on all of them and not on one alone; the largest
        first, since each ends where all smaller ones may begin."""
        times = Times(sizes, self._bound)
        while missing := times.missing():
            for size in reversed(missing):
                times.add(size, self._gap(size, depth))
        return times.medians()

    def _depths(self) -> list[int]:
        """The root, as deep as leaves room for all chunks, and half of that; in whole chunks. Of a
        short context the first half, with room for a chunk that begins where chunks do."""
        room = max(min(_ROOM * self._most, self._length // 2), 2 * self._most + 1)
        deepest = max(0, self._length - room)
        return sorted({deepest * part // 2 // self._most * self._most for part in range(3)})

    def _gap(self, size: int, depth: int) -> float:
        """The time from one round to the next with a chunk of ``size`` and nothing else between."""
        while True:
            reader = self._reader_at(depth, size)
            self._refresh(3)
            # A program that computes when asked has run the chunk before it says that the round
            # ahead of it is over, so both rounds beside the chunk are timed and one is taken off.
            before = self._driver.round(self._rows)
            tokens = self._driver.round_and_chunk(self._rows, reader)
            after = self._driver.round(self._rows)
            if tokens == size:
                return after - before - self._alone

    def _reader_at(self, depth: int, size: int) -> Row:
        """One that stands at ``depth`` or behind it, where chunks of ``size`` begin."""
        while True:
            if self._reader is not None and self._reader.length + size >= self._length:
                self._drop_reader()
            reader = self._reader = self._reader or self._driver.bind(self._length, 1)
            self._program.limit_chunk(self._most)
            while reader.length < depth:
                self._driver.read(reader)
            self._program.limit_chunk(size)
            if reader.length % size == 0:
                return reader
            self._driver.read(reader)

    def _drop_reader(self) -> None:
        if self._reader is not None:
            self._driver.end(self._reader)
            self._reader = None

    def _seconds_per_token(self, depth: int) -> float:
        """How much longer a round takes for each token of the context of a row."""
        self._drop_reader()
        if not depth:
            return 0.0
        self._refresh(_ROUNDS)
        short = statistics.median(self._rounds(self._rows[:1]))
        self._program.limit_chunk(self._most)
        deep = self._driver.decoding(depth, _ROUNDS * self._stride + 1)
        return max(0.0, statistics.median(self._rounds([deep])) - short) / depth

    def _rounds(self, rows: list[Row]) -> list[float]:
        """Seconds of rounds of ``rows`` with nothing in between."""
        times = [self._driver.round(rows) for _ in range(_ROUNDS)]
        return [b - a for a, b in pairwise(times[_FIRST_ROUNDS:])]

    def _short(self) -> Row:
        return self._driver.decoding(_SHORT, self._new)

    def _refresh(self, rounds: int) -> bool:
        """Rows that may end within ``rounds`` begin again; whether there were any."""
        least = rounds * self._stride
        ending = [place for place, row in enumerate(self._rows) if row.most - row.length <= least]
        for place in ending:
            self._driver.end(self._rows[place])
            self._rows[place] = self._short()
        return bool(ending)
