"""Launching decode rounds: inputs into the ring, one graph, results out of the ring."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.contract.units import PendingBatch, UnitKind
from ninfer_core.device.flags import Flag
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.program.queued.expected import Expected
from ninfer_qwen3_5.program.queued.lanes import LaneState
from ninfer_qwen3_5.program.queued.launches import DrawnLaunch
from ninfer_qwen3_5.program.queued.masks import MaskRing
from ninfer_qwen3_5.program.queued.results import ComingLogprobs
from ninfer_qwen3_5.program.queued.ring import CHANGES, DEPTH, Drawing, HostRing
from ninfer_qwen3_5.program.queued.rounds import CapturedRound, Part, Rounds
from ninfer_qwen3_5.program.sequence import Sequence
from ninfer_qwen3_5.program.units import UnitRow
from ninfer_qwen3_5.program.work import RowWork

if TYPE_CHECKING:
    from ninfer_core.device.base import Lane
    from ninfer_core.store.block_tables import BlockTables

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
        self._expected = Expected()
        self._done_at = 0.0
        self.rehearse: Callable[[PendingBatch], object] | None = None

    def launch(self, rows: Rows[UnitRow]) -> RoundLaunch:
        """Enqueue a round; the half that draws waits for ``finish`` where a row has masks."""
        words, part, listing = _inputs(rows)
        changes = self._lanes.changes(self._tables, CHANGES) if self._tables.pending else []
        number = self._ring.write(words, changes)
        captured = self._rounds.captured(len(rows), part)
        captured.graph.replay()
        launch = RoundLaunch(self, rows, number, part is Part.FORWARD)
        if listing and part is not Part.FORWARD:
            launch.list_logprobs(captured)
        return launch

    def set_out(self, rows: Rows[UnitRow]) -> None:
        """What :meth:`launch` does up to the launch, for rows in flight and to no effect."""
        words, part, _ = _inputs(rows)
        self._ring.put(words, ())
        self._rounds.captured(len(rows), part)

    def draw(self, number: int, rows: Rows[UnitRow]) -> tuple[CapturedRound, list[bool]]:
        """Fill the masks of a round and enqueue its drawing half; returns which rows are at a dead
        end."""
        dead = self._masks.fill_round(number, [row.masks for row in rows])
        captured = self._rounds.captured(len(rows), Part.FINISH)
        captured.graph.replay()
        return captured, dead

    def logprobs(self, captured: CapturedRound, tops: Rows[int | None]) -> ComingLogprobs:
        """Enqueue log-probabilities behind a draw."""
        import torch

        most = max(top for top in tops if top is not None)
        with torch.inference_mode():
            rows = self._ops.logprobs(captured.logits, captured.drawn.tokens, most)
        return ComingLogprobs.of(rows, tops, self._lane)

    def wait(
        self, number: int, count: int, started: float, rehearse: Callable[[], object] | None = None
    ) -> Drawing:
        """Block until the flag of a round is up that was launched at ``started``; ``rehearse`` as
        in :meth:`Flag.wait`."""
        began = max(started, self._done_at)
        left = max(0.0, self._expected.seconds(count) - (time.perf_counter() - began))
        overslept = self._flags[number % DEPTH].wait(
            number + 1, left, check=self._lane.query, rehearse=rehearse, what="a round"
        )
        self._done_at = time.perf_counter()
        self._expected.learn(count, self._done_at - began, overslept)
        return self._ring.read(number, count)


class RoundLaunch(DrawnLaunch):
    """A round in flight. Its log-probabilities are enqueued behind its draw when a row asks for
    them."""

    kind = UnitKind.DECODE

    def __init__(
        self, launcher: RoundLauncher, rows: Rows[UnitRow], number: int, masked: bool
    ) -> None:
        super().__init__(rows)
        self._launcher = launcher
        self._number = number
        self._masked = masked
        self._logprobs: ComingLogprobs | None = None

    def list_logprobs(self, captured: CapturedRound) -> None:
        tops = [row.work.sequence.top for row in self.rows]
        if tops.count(None) < len(tops):
            self._logprobs = self._launcher.logprobs(captured, tops)

    def _draw(self) -> Rows[bool] | None:
        if not self._masked:
            return None
        captured, dead = self._launcher.draw(self._number, self.rows)
        self.list_logprobs(captured)
        return dead

    def _wait(self) -> Drawing:
        rehearse = None if self._launcher.rehearse is None else self._rehearse
        return self._launcher.wait(self._number, len(self.rows), self._launched, rehearse)

    def _rehearse(self) -> None:
        """Go through what comes next, as if every row had drawn the token 0."""
        self._launcher.set_out(self.rows)
        if self._launcher.rehearse is not None:
            zeros, nothing = [0] * len(self.rows), [NO_LOGPROBS] * len(self.rows)
            self._launcher.rehearse(self._pending((zeros, zeros), nothing, (), 0.0, 0.0))

    def _listed(self, tokens: Rows[int]) -> Rows[tuple[TokenLogprobs, ...]]:
        if self._logprobs is None:
            return [NO_LOGPROBS] * len(tokens)
        return self._logprobs.wait(tokens)


def _inputs(rows: Rows[UnitRow]) -> tuple[list[tuple[int, ...]], Part, bool]:
    """The ring's words, the part of a round to replay, and whether log-probabilities are listed."""
    words, masked, plain, listing = [], False, True, False
    for row in rows:
        work = row.work
        sequence = work.sequence
        words.append(_words(work, sequence))
        masked = masked or row.masks is not None
        plain = plain and sequence.plain
        listing = listing or sequence.top is not None
        work.counted = True
    return words, Part.FORWARD if masked else Part.GREEDY if plain else Part.DRAWN, listing


def _words(work: RowWork, sequence: Sequence) -> tuple[int, ...]:
    """The ring's words of one row. A row behind an uncollected round takes its token from there."""
    token = -1 if work.behind else sequence.waiting_token
    ring, place = sequence.ring, sequence.turn + work.behind
    source, target = ring[place % len(ring)], ring[(place + 1) % len(ring)]
    return (sequence.row, token, work.start, source.index, target.index, sequence.rope_delta)
