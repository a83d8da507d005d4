"""Speculative rounds as captured graphs: verify, accept, observe, propose; and their folds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import DrawPurpose, PagedRows, TokenMasks
from ninfer_core.ops.contracts.verifying import SettledRows, VerifiedRows, VerifyAnswer
from ninfer_qwen3_5.model.placement import Placement
from ninfer_qwen3_5.model.routes import VerifyRoute
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.drafting import Drafter, Seen
from ninfer_qwen3_5.program.queued.lanes import LaneState
from ninfer_qwen3_5.program.queued.rounds import Part
from ninfer_qwen3_5.program.queued.spec_inputs import SpecInputs, SpecRows

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Arena, Device, Graph, Lane


@dataclass(slots=True)
class Ran:
    """What Forward leaves for Finish, and the logits f32[B * W, V] for whoever lists them."""

    logits: Tensor
    seen: Seen
    place: Placement
    slots: Tensor


@dataclass(slots=True)
class Held:
    """Filled when a body is captured; on a device that replays by calling, at each call. ``width``
    is that of its rows."""

    width: int
    ran: Ran | None = None

    @property
    def logits(self) -> Tensor:
        assert self.ran is not None
        return self.ran.logits


class SpecRounds:
    """Bodies over fixed tensors, and one graph of each part for every number of rows, K + 1 wide,
    shorter rows padded."""

    def __init__(
        self,
        model: TextModel,
        state: ModelState,
        drafter: Drafter,
        lanes: LaneState,
        inputs: SpecInputs,
        masks: TokenMasks,
        arena: Arena,
        count: int,
    ) -> None:
        import torch

        self._model = model
        self._state = state
        self._drafter = drafter
        self._lanes = lanes
        self._inputs = inputs
        self._masks = masks
        self._count = count
        self._hidden: Tensor | None = None
        if drafter.hidden is not None:
            shape = (count * inputs.width, model.config.hidden_size)
            self._hidden = arena.take("spec.hidden", shape, drafter.hidden.dtype).zero_()
        self._columns = arena.take("spec.columns", (inputs.width,), torch.int32)
        self._columns.copy_(torch.arange(inputs.width, dtype=torch.int32))
        self.widths = (inputs.width,)
        self._graphs: dict[tuple[int, Part, int], tuple[Graph, Held]] = {}
        self._folds: dict[int, Graph] = {}

    @staticmethod
    def bytes(count: int, width: int, hidden_size: int) -> int:
        """An upper bound of what is taken from the arena."""
        return 4 * count * width * hidden_size + 4096

    @property
    def counts(self) -> range:
        return range(1, self._count + 1)

    def capture(self, device: Device, lane: Lane) -> None:
        """Capture everything, the largest count first. Each body has run before."""
        for count in reversed(self.counts):
            for width in self.widths:
                forward = Held(width)
                for part in Part:
                    held = forward if part in (Part.FORWARD, Part.FINISH) else Held(width)
                    body = partial(self.run, count, part, held)
                    self._graphs[count, part, width] = device.capture(body, lane), held
            self._folds[count] = device.capture(partial(self.run_fold, count), lane)

    def replay(self, count: int, part: Part, width: int) -> Held:
        graph, held = self._graphs[count, part, width]
        graph.replay()
        return held

    def replay_fold(self, count: int) -> None:
        self._folds[count].replay()

    def run(self, count: int, part: Part, held: Held) -> None:
        """Enqueue one part; FINISH goes on from what ``held`` holds."""
        import torch

        with torch.inference_mode():
            rows = self._inputs.rows(count, held.width)
            if part is not Part.FINISH:
                held.ran = self._forward(rows, count, held.width)
            if part is not Part.FORWARD:
                assert held.ran is not None
                self._finish(rows, count, held.ran, part)

    def run_fold(self, count: int) -> None:
        """Enqueue the states after what was accepted, each into its target."""
        import torch

        with torch.inference_mode():
            rows = self._inputs.fold_rows(count)
            slots, targets = rows.slots.long(), rows.targets.long()
            self._state.fold(self._model.ops, slots, rows.counts, targets)
            if self._hidden is not None and self._drafter.hidden is not None:
                last = self._hidden.index_select(0, rows.last.long())
                self._drafter.hidden.index_copy_(0, targets, last)

    def _forward(self, rows: SpecRows, count: int, width: int) -> Ran:
        model = self._model
        paged = PagedRows(
            self._lanes.tables.block_tables, rows.lanes, rows.starts, rows.live, width
        )
        places = (rows.starts + rows.deltas).unsqueeze(1) + self._columns[:width]
        place = model.place(paged, places.flatten().expand(3, -1).contiguous())
        slots, taps = rows.slots.long(), self._drafter.taps()
        route = VerifyRoute(model.ops, place, slots, slots)
        stream = model.forward(rows.ids, route, self._state, taps)
        seen = self._drafter.seen(stream.residual, taps)
        if self._hidden is not None and seen.hidden is not None:
            self._hidden[: count * width].copy_(seen.hidden)
        return Ran(model.logits(stream), seen, place, slots)

    def _finish(self, rows: SpecRows, count: int, ran: Ran, part: Part) -> None:
        tokens, broken = self._draw(rows, count, ran.logits, part)
        *answer, drafts = self._inputs.answers(count, ran.place.rows.width)
        verified = VerifiedRows(
            rows.ids, rows.starts, rows.live, rows.deltas, rows.remaining, rows.most
        )
        drafter = self._drafter
        settled = self._model.ops.settle_drafts(
            tokens, broken, verified, VerifyAnswer(*answer), drafter.tokens, drafter.block
        )
        drafts.copy_(self._propose(rows, ran, settled).flatten())

    def _draw(
        self, rows: SpecRows, count: int, logits: Tensor, part: Part
    ) -> tuple[Tensor, Tensor]:
        """What each row takes, as plain decoding would, i32[B * W], and whether it is broken."""
        model, lanes, width = self._model, self._lanes, logits.shape[0] // count
        if part is Part.GREEDY:
            drawn = model.ops.argmax_rows(logits, model.addressable)
            return drawn.tokens, drawn.broken
        at = rows.lanes.long().unsqueeze(1).expand(-1, width).flatten()
        positions = (rows.starts.unsqueeze(1) + (1 + self._columns[:width])).flatten()
        masks = None
        if part is Part.FINISH:
            taken = count * width
            masks = TokenMasks(self._masks.words[:taken], self._masks.active[:taken])
        drafts = rows.ids.view(count, width)[:, 1:].contiguous()
        drawn = model.ops.draw_rows(
            logits,
            model.addressable,
            lanes.settings,
            lanes.counts,
            at,
            positions,
            DrawPurpose.DECODE,
            masks,
            drafts,
        )
        return drawn.tokens, drawn.broken

    def _propose(self, rows: SpecRows, ran: Ran, settled: SettledRows) -> Tensor:
        """Let the drafter see the rows, and draft behind what was accepted, i32[B, K]. Where there
        is no use for a draft nothing is stored for it."""
        drafter, hidden = self._drafter, ran.seen.hidden
        drafter.after_rows(rows.ids, ran.seen, ran.place, ran.slots)
        if hidden is not None:
            hidden = hidden.index_select(0, settled.last)
        tables, columns = ran.place.rows.block_tables, []
        for place, (_, wide) in enumerate(drafter.widths(drafter.tokens)):
            starts, live = settled.starts[place], settled.live[place]
            paged = PagedRows(tables, rows.lanes, starts, live, wide)
            columns.append((paged, settled.positions[place]))
        return drafter.propose(settled.tokens, hidden, columns).drafts
