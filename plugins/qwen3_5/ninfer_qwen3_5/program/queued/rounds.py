"""Decode rounds as captured graphs: one per number of rows and part, all captured at start."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ninfer_core.device.base import ALIGNMENT
from ninfer_core.ops.contracts.rounds import RoundRows
from ninfer_core.ops.contracts.values import Drawn, DrawPurpose, PagedRows, TokenMasks
from ninfer_qwen3_5.model.routes import StepRoute
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.drafting import Drafter
from ninfer_qwen3_5.program.queued.lanes import LaneState
from ninfer_qwen3_5.program.queued.ring import HostRing

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Arena, Device, Graph, Lane


class Part(enum.Enum):
    """What a graph does: a whole round whose rows all take the likeliest token, a whole round that
    draws, or the two halves of a round whose masks the host fills in between. Looked up in every
    round: members are single, so that their identity is a hash that costs nothing."""

    __hash__ = object.__hash__

    GREEDY = "greedy"
    DRAWN = "drawn"
    FORWARD = "forward"
    FINISH = "finish"


@dataclass(slots=True)
class CapturedRound:
    """A graph and the tensors that it leaves behind: logits f32[B, V] and what was drawn."""

    graph: Graph
    outcome: Outcome

    @property
    def logits(self) -> Tensor:
        assert self.outcome.logits is not None
        return self.outcome.logits

    @property
    def drawn(self) -> Drawn:
        assert self.outcome.drawn is not None
        return self.outcome.drawn


@dataclass(slots=True)
class Outcome:
    """Filled when a body is captured; on a device that replays by calling, at each call."""

    logits: Tensor | None = None
    drawn: Drawn | None = None


class Rounds:
    """Bodies of rounds over fixed tensors, and their graphs. A ``drafter`` takes in what ran. All
    leave their ``logits`` f32[B, V] in the first rows of one tensor: a round has no use for them
    once the next one runs."""

    def __init__(
        self,
        model: TextModel,
        state: ModelState,
        lanes: LaneState,
        ring: HostRing,
        masks: TokenMasks,
        arena: Arena,
        count: int,
        logits: Tensor,
        drafter: Drafter | None = None,
    ) -> None:
        self._logits = logits
        self._drafter = drafter
        self._model = model
        self._state = state
        self._lanes = lanes
        self._ring = ring
        self._masks = masks
        self._rows = {size: _rows(arena, size) for size in range(1, count + 1)}
        self._captured: dict[tuple[int, Part], CapturedRound] = {}

    def __len__(self) -> int:
        return len(self._captured)

    def rows(self, count: int) -> RoundRows:
        return self._rows[count]

    def captured(self, count: int, part: Part) -> CapturedRound:
        return self._captured[count, part]

    def capture(self, device: Device, lane: Lane) -> None:
        """Capture every count and part, the largest count first. Each body has run before."""
        for count in sorted(self._rows, reverse=True):
            forward = Outcome()
            for part in Part:
                outcome = forward if part is Part.FORWARD else Outcome()
                body = partial(self._record, count, part, outcome, forward)
                self._captured[count, part] = CapturedRound(device.capture(body, lane), outcome)

    def run(self, count: int, part: Part, logits: Tensor | None = None) -> Outcome:
        """Enqueue one part over the places of ``count`` rows; FINISH takes FORWARD's logits."""
        import torch

        with torch.inference_mode():
            if logits is None:
                logits = self._forward(self._rows[count])
            if part is Part.FORWARD:
                return Outcome(logits)
            return Outcome(logits, self._finish(self._rows[count], logits, part))

    def _record(self, count: int, part: Part, outcome: Outcome, forward: Outcome) -> None:
        given = forward.logits if part is Part.FINISH else None
        made = self.run(count, part, given)
        outcome.logits, outcome.drawn = made.logits, made.drawn

    def _forward(self, rows: RoundRows) -> Tensor:
        model, tables = self._model, self._lanes.tables
        model.ops.begin_round(self._ring.ring, tables, rows)
        paged = PagedRows(tables.block_tables, rows.table_rows, rows.starts, rows.live, 1)
        place = model.place(paged, rows.positions)
        route = StepRoute(model.ops, place, rows.slots, rows.targets)
        taps = None if self._drafter is None else self._drafter.taps()
        stream = model.forward(rows.ids, route, self._state, taps)
        logits = model.logits(stream, out=self._logits[: rows.ids.shape[0]])
        if self._drafter is not None:
            self._drafter.after_step(
                rows.ids, stream.residual, taps, place, rows.slots, rows.targets
            )
        return logits

    def _finish(self, rows: RoundRows, logits: Tensor, part: Part) -> Drawn:
        model, lanes = self._model, self._lanes
        if part is Part.GREEDY:
            drawn = model.ops.argmax_rows(logits, model.addressable)
        else:
            count = rows.ids.shape[0]
            masks = TokenMasks(self._masks.words[:count], self._masks.active[:count])
            drawn = model.ops.draw_rows(
                logits,
                model.addressable,
                lanes.settings,
                lanes.counts,
                rows.lanes,
                rows.chosen,
                DrawPurpose.DECODE,
                masks if part is Part.FINISH else None,
            )
        model.ops.publish_round(
            self._ring.ring, lanes.tables, rows, lanes.counts, drawn.tokens, drawn.broken
        )
        return drawn


def round_bytes(count: int) -> int:
    """An upper bound of the row tensors of all counts."""
    return count * 16 * 256 + count * count * 128


def logits_bytes(rows: int, vocab: int) -> int:
    """Of what :func:`take_logits` takes, at most."""
    return 4 * rows * vocab + ALIGNMENT


def take_logits(arena: Arena, rows: int, vocab: int) -> Tensor:
    """f32[rows, V] for the logits of any round of at most so many rows."""
    import torch

    return arena.take("logits", (rows, vocab), torch.float32)


def _rows(arena: Arena, count: int) -> RoundRows:
    import torch

    def take(name: str, *shape: int, wide: bool = False) -> Tensor:
        dtype = torch.int64 if wide else torch.int32
        return arena.take(f"rows.{count}.{name}", shape, dtype).zero_()

    return RoundRows(
        ids=take("ids", count),
        lanes=take("lanes", count, wide=True),
        table_rows=take("table_rows", count),
        starts=take("starts", count),
        live=take("live", count),
        slots=take("slots", count, wide=True),
        targets=take("targets", count, wide=True),
        positions=take("positions", 3, count),
        chosen=take("chosen", count),
    )
