"""What drafts cost on this device: replays of the captured graphs, timed at start."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING

from ninfer_core.contract.draft_costs import DraftCosts
from ninfer_core.ops.contracts.values import SamplingRows
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.program.queued.lanes import LaneState
from ninfer_qwen3_5.program.queued.ring import HostRing
from ninfer_qwen3_5.program.queued.rounds import Part, Rounds
from ninfer_qwen3_5.program.queued.spec_inputs import Behind, RowWords, SpecInputs
from ninfer_qwen3_5.program.queued.spec_rounds import SpecRounds

if TYPE_CHECKING:
    from ninfer_core.device.base import Lane

ROWS = (1, 4, 8)
"""Numbers of rows that are measured, and the most that there are."""

SAMPLES = 5
DRAWN_SAMPLES = 3
"""Of rounds that draw, beside what is known of those that do not."""

REPLAYS = 2
"""Of each sample, enqueued one behind the other."""

DRAWING = {"temperature": 1.0, "top_k": 20, "top_p": 0.95, "repetition": 1.0}
"""Settings of rounds that draw: those that the released models ask for. A repetition penalty of 1
is none; all else is none at 0, as lanes that nobody has have it."""

_ENOUGH = 1 << 20
"""Tokens that may be produced: every draft has a use."""


class DraftMeasure:
    """Rounds on page 0, whose rows read state slot 0 and leave theirs in ``scratch``. Contexts are
    as short as can be: what grows with them grows for rounds of either kind."""

    def __init__(
        self,
        plain: Rounds,
        ring: HostRing,
        speculation: SpecRounds,
        inputs: SpecInputs,
        lane: Lane,
        scratch: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._plain = plain
        self._ring = ring
        self._speculation = speculation
        self._inputs = inputs
        self._lane = lane
        self.scratch = scratch
        self._clock = clock
        self._most = inputs.width - 1

    def costs(self) -> DraftCosts:
        """Medians of greedy rounds for some numbers of rows."""
        most = self._speculation.counts[-1]
        rows = tuple(sorted({count for count in ROWS if count <= most} | {most}))
        plain, verify, draft = [], [], []
        for count in rows:
            plain.append(self._seconds(partial(self._round, count)))
            verify.append(self._verifying(count))
            draft.append(self._drafting(count))
        return DraftCosts(
            rows=rows,
            plain=tuple(plain),
            verify=tuple(zip(*verify, strict=True)),
            draft=tuple(zip(*draft, strict=True)),
        )

    def drawn(self, greedy: DraftCosts) -> DraftCosts:
        """The same of rounds that draw. What draws add to a greedy round is measured of the plain
        one, and of the widest and the narrowest that verifies drafts; it is a line in between."""
        plain, verify = [], []
        for place, count in enumerate(greedy.rows):
            base = greedy.plain[place]
            more = self._seconds(partial(self._round, count, Part.DRAWN), DRAWN_SAMPLES) - base
            plain.append(base + max(0.0, more))
            known = [seconds[place] for seconds in greedy.verify]
            verify.append(self._drawn_verifying(count, known, max(0.0, more)))
        return replace(greedy, plain=tuple(plain), verify=tuple(zip(*verify, strict=True)))

    def _drawn_verifying(self, count: int, greedy: list[float], more: float) -> list[float]:
        """``greedy`` seconds by 0 .. K drafts with what draws add: ``more`` without a draft."""
        rounds = self._speculation
        widths = [rounds.width(drafts + 1) for drafts in range(self._most + 1)]
        low, high = min(widths[1:]), widths[-1]
        added = {
            width: max(
                0.0,
                self._seconds(partial(self._verify, count, width, Part.DRAWN), DRAWN_SAMPLES)
                - greedy[widths.index(width)],
            )
            for width in {low, high}
        }
        step = (added[high] - added[low]) / max(1, high - low)
        return [greedy[0] + more] + [
            seconds + added[low] + step * (width - low)
            for seconds, width in zip(greedy[1:], widths[1:], strict=True)
        ]

    def _verifying(self, count: int) -> list[float]:
        """Seconds of a round that verifies 0 .. K drafts of every row, and of its fold."""
        rounds = self._speculation
        by_width = {
            width: self._seconds(partial(self._verify, count, width)) for width in rounds.widths
        }
        return [by_width[rounds.width(drafts + 1)] for drafts in range(self._most + 1)]

    def _drafting(self, count: int) -> list[float]:
        """Seconds of making 0 .. K drafts for every row, behind a round that leaves use for all."""
        rounds = self._speculation
        self._verify(count, rounds.widths[0])
        by_most = {
            most: self._seconds(partial(rounds.replay_drafts, count, most)) for most in rounds.makes
        }
        return [0.0] + [
            min(seconds for most, seconds in by_most.items() if most >= drafts)
            for drafts in range(1, self._most + 1)
        ]

    def _round(self, count: int, part: Part = Part.GREEDY) -> None:
        rows = [(lane, 0, 0, 0, self.scratch, 0) for lane in range(count)]
        self._ring.write(rows, [])
        self._plain.captured(count, part).graph.replay()

    def _verify(self, count: int, width: int, part: Part = Part.GREEDY) -> None:
        words = [
            RowWords(
                ids=(0,) * width,
                start=0,
                delta=0,
                slot=0,
                lane=lane,
                remaining=_ENOUGH,
                most=self._most,
                behind=Behind.NOTHING,
                place=self._speculation.place(0, lane),
            )
            for lane in range(count)
        ]
        self._inputs.send(words, width, [])
        self._speculation.replay(count, part, width)
        self._inputs.send_fold([(0, self.scratch, lane, -1, -1) for lane in range(count)])
        self._speculation.replay_fold(count)

    def _seconds(self, enqueue: Callable[[], object], samples: int = SAMPLES) -> float:
        """Of one, the median of some samples; the first replays do not count."""
        took = []
        for _ in range(samples + 1):
            self._lane.synchronize()
            began = self._clock()
            for _ in range(REPLAYS):
                enqueue()
            self._lane.synchronize()
            took.append((self._clock() - began) / REPLAYS)
        return statistics.median(took[1:])


def measured(measure: DraftMeasure, lanes: LaneState, state: ModelState) -> DraftCosts:
    """Run it, and leave no trace that anybody reads."""
    lanes.tables.block_tables.zero_()
    costs = measure.costs()
    with drawing(lanes.settings):
        costs = replace(costs, drawn=measure.drawn(costs))
    lanes.tables.block_tables.fill_(-1)
    lanes.counts.generated.zero_()
    state.clear_slot(0)
    state.clear_slot(measure.scratch)
    return costs


@contextmanager
def drawing(settings: SamplingRows) -> Iterator[None]:
    """Every lane draws as :data:`DRAWING` says; afterwards as before."""
    before = {field.name: getattr(settings, field.name).clone() for field in fields(settings)}
    for name, value in DRAWING.items():
        getattr(settings, name).fill_(value)
    try:
        yield
    finally:
        for name, values in before.items():
            getattr(settings, name).copy_(values)
