"""Launching decode rounds: inputs into the ring, one graph, results out of the ring."""

from __future__ import annotations

import time
from collections.abc import Sequence as Rows
from functools import partial
from typing import TYPE_CHECKING

from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.contract.units import UnitKind
from ninfer_core.device.flags import Flag
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.program.queued.lanes import LaneState
from ninfer_qwen3_5.program.queued.launches import Drawing, DrawnLaunch
from ninfer_qwen3_5.program.queued.masks import MaskRing
from ninfer_qwen3_5.program.queued.results import ComingLogprobs
from ninfer_qwen3_5.program.queued.ring import CHANGES, DEPTH, HostRing
from ninfer_qwen3_5.program.queued.rounds import CapturedRound, Part, Rounds
from ninfer_qwen3_5.program.sequence import Sequence
from ninfer_qwen3_5.program.units import UnitRow
from ninfer_qwen3_5.program.work import RowWork

if TYPE_CHECKING:
    from ninfer_core.device.base import Lane
    from ninfer_core.store.block_tables import BlockTables

_WEIGHT_OF_LAST = 0.25
"""Of the latest round's time in the running estimate of how long a round takes."""

NO_LOGPROBS: tuple[TokenLogprobs, ...] = ()


class RoundLauncher:
    """Turns rows into launches; keeps the rounds' numbers, flags and expected times."""

    def __init__(
        self,
        rounds: Rounds,
        ring: HostRing,
        lanes: LaneState,
        tables: BlockTables,
        masks: MaskRing,
        ops: Ops,
        lane: Lane,
    ) -> None:
        self._rounds = rounds
        self._ring = ring
        self._lanes = lanes
        self._tables = tables
        self._masks = masks
        self._ops = ops
        self._lane = lane
        self._flags = [Flag(ring.flag(number)) for number in range(DEPTH)]
        self._seconds: dict[int, float] = {}
        self._done_at = 0.0

    def launch(self, rows: Rows[UnitRow]) -> DrawnLaunch:
        """Enqueue a round; the half that draws waits for ``finish`` where a row has masks."""
        words, tops, masked, plain = [], [], False, True
        for row in rows:
            work, sequence = row.work, row.work.sequence
            words.append(_words(work, sequence))
            tops.append(sequence.request.rules.logprobs)
            masked = masked or row.masks is not None
            plain = plain and sequence.plain
            work.counted = True
        number = self._ring.write(words, self._changes())
        part = Part.FORWARD if masked else Part.GREEDY if plain else Part.DRAWN
        captured = self._rounds.captured(len(rows), part)
        captured.graph.replay()
        started = time.perf_counter()
        if masked:
            captured = self._rounds.captured(len(rows), Part.FINISH)
        logprobs = _Logprobs(self._ops, captured, tops, self._lane)
        if not masked:
            logprobs.enqueue()
        return DrawnLaunch(
            UnitKind.DECODE,
            rows,
            partial(self._fill_and_draw, number, rows, captured, logprobs)
            if masked
            else partial(_alive, len(rows)),
            partial(self._wait, number, len(rows), started),
            logprobs.wait,
            tuple,
        )

    def _changes(self) -> list[tuple[int, int, int]]:
        """Block table entries that the device does not have yet; more than a round can carry go by
        whole rows."""
        if not self._tables.pending:
            return []
        changes: list[tuple[int, int, int]] = list(self._tables.drain())
        self._lanes.check_pages(page for _, _, page in changes)
        if len(changes) <= CHANGES:
            return changes
        for row in {row for row, _, _ in changes}:
            self._lanes.send_row(self._tables, row)
        return []

    def _wait(self, number: int, count: int, started: float) -> Drawing:
        """Block until the round's flag is up."""
        began = max(started, self._done_at)
        usual = self._seconds.get(count, 0.0)
        expected = max(0.0, usual - (time.perf_counter() - began))
        flag = self._flags[number % DEPTH]
        flag.wait(number + 1, expected, check=self._lane.query, what=f"round {number}")
        self._done_at = time.perf_counter()
        took = self._done_at - began
        self._seconds[count] = usual + _WEIGHT_OF_LAST * (took - usual) if usual else took
        return self._ring.read(number, count)

    def _fill_and_draw(
        self, number: int, rows: Rows[UnitRow], captured: CapturedRound, logprobs: _Logprobs
    ) -> list[bool]:
        dead = self._masks.fill_round(number, [row.masks for row in rows])
        captured.graph.replay()
        logprobs.enqueue()
        return dead


class _Logprobs:
    """Log-probabilities of a round, enqueued behind its draw when a row asks for them."""

    def __init__(
        self, ops: Ops, captured: CapturedRound, tops: Rows[int | None], lane: Lane
    ) -> None:
        self._ops = ops
        self._captured = captured
        self._tops = tuple(tops)
        self._lane = lane
        self._coming: ComingLogprobs | None = None

    def enqueue(self) -> None:
        if self._tops.count(None) == len(self._tops):
            return
        import torch

        counts = [count for count in self._tops if count is not None]
        drawn = self._captured.drawn
        with torch.inference_mode():
            rows = self._ops.logprobs(self._captured.logits, drawn.tokens, max(counts))
        self._coming = ComingLogprobs.of(rows, self._tops, self._lane)

    def wait(self, token_ids: list[int]) -> list[tuple[TokenLogprobs, ...]]:
        if self._coming is None:
            return [NO_LOGPROBS] * len(token_ids)
        return self._coming.wait(token_ids)


def _words(work: RowWork, sequence: Sequence) -> tuple[int, ...]:
    """The ring's words of one row. A row behind an uncollected round takes its token from there."""
    token = -1 if work.behind else sequence.waiting_token
    ring, place = sequence.ring, sequence.turn + work.behind
    source, target = ring[place % len(ring)], ring[(place + 1) % len(ring)]
    delta = sequence.request.prepared.rope_delta
    return (sequence.row, token, work.start, source.index, target.index, delta)


def _alive(count: int) -> list[bool]:
    return [False] * count
