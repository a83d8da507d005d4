"""Speculative rounds as captured graphs: verify, accept, observe; propose; and their folds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import PagedRows, TokenMasks
from ninfer_core.ops.contracts.verifying import ResolvedRows, VerifyAnswer
from ninfer_qwen3_5.model.placement import Placement
from ninfer_qwen3_5.model.routes import VerifyRoute
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.drafting import Drafter, Seen
from ninfer_qwen3_5.program.queued.lanes import LaneState, settings_at
from ninfer_qwen3_5.program.queued.rounds import Part
from ninfer_qwen3_5.program.queued.spec_draws import SpecDraws
from ninfer_qwen3_5.program.queued.spec_inputs import SpecInputs
from ninfer_qwen3_5.program.queued.spec_lanes import kept_bytes, kept_words, settled_rows

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Arena, Device, Graph, Lane


@dataclass(slots=True)
class Ran:
    """What Forward leaves for Finish, and the logits f32[B * W, V]."""

    rows: ResolvedRows
    logits: Tensor
    seen: Seen
    place: Placement


@dataclass(slots=True)
class Held:
    """``width`` is that of its rows, ``logits`` f32[B * W, V] are for whoever lists them. If Finish
    is another body ``ran`` is filled: when Forward is captured; on a device that replays by
    calling, at each call."""

    width: int
    logits: Tensor
    ran: Ran | None = None


class SpecRounds:
    """Bodies over fixed tensors, and their graphs for every number of rows: a round in each of
    ``widths``, shorter rows padded, with masks in the widest alone; the drafts behind it in each of
    ``makes``; and the fold of what it accepted.

    A round takes what the host does not know from where the round before left it, by lane. So
    does a fold, which may stand before the next round or follow the host's decision. All rounds
    leave their ``logits`` in the first rows of one tensor, where nothing else is once they ran.
    """

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
        logits: Tensor,
    ) -> None:
        self._logits = logits
        self._model = model
        self._state = state
        self._drafter = drafter
        self._lanes = lanes
        self._inputs = inputs
        self._count = count
        self._kept = kept_words(arena, count, inputs.width)
        self._settled = {
            size: settled_rows(arena, size, drafter.tokens, block=drafter.block)
            for size in range(1, count + 1)
        }
        self._hidden: Tensor | None = None
        if drafter.hidden is not None:
            shape = (2 * count * inputs.width, model.config.hidden_size)
            self._hidden = arena.take("spec.hidden", shape, drafter.hidden.dtype).zero_()
        self._draws = SpecDraws(model, lanes, masks, drafter.laws)
        self.widths = widths_of(inputs.width)
        most = (inputs.width - 1,)
        self.makes = most if drafter.block else tuple(width - 1 for width in self.widths[1:])
        self._graphs: dict[tuple[int, Part, int], tuple[Graph, Held]] = {}
        self._makes: dict[tuple[int, int], Graph] = {}
        self._folds: dict[int, Graph] = {}
        self._changes: Graph | None = None

    @staticmethod
    def bytes(count: int, width: int, hidden_size: int) -> int:
        """An upper bound of what is taken from the arena."""
        return 8 * count * width * hidden_size + 8192 + kept_bytes(count, width)

    @staticmethod
    def graphs(count: int, width: int, *, block: bool) -> int:
        """How many are captured: of each number of rows, two in every width and two more with
        masks, those of drafts, and the fold; and what changes block tables."""
        widths = len(widths_of(width))
        makes = 1 if block else widths - 1
        return count * (2 * widths + 2 + makes + 1) + 1

    @property
    def counts(self) -> range:
        return range(1, self._count + 1)

    def place(self, number: int, index: int) -> int:
        """Where the hidden rows of a round's ``index``-th row begin; those of the round before it
        stay."""
        return (number % 2 * self._count + index) * self._inputs.width

    def width(self, rows: int, *, masked: bool = False) -> int:
        """The least width that there is for so many rows to verify."""
        return next(w for w in self.widths if w >= rows and self.parts(w, masked))

    def parts(self, width: int, masked: bool) -> tuple[Part, ...]:
        """Of a round so wide: whole, or in halves around its masks."""
        if not masked:
            return Part.GREEDY, Part.DRAWN
        return (Part.FORWARD, Part.FINISH) if width == self.widths[-1] else ()

    def capture(self, device: Device, lane: Lane) -> None:
        """Capture everything, the largest count first. Each body has run before."""
        self._changes = device.capture(self.run_changes, lane)
        for count in reversed(self.counts):
            for width in reversed(self.widths):
                forward = self.held(count, width)
                for masked in (False, True):
                    for part in self.parts(width, masked):
                        held = forward if masked else self.held(count, width)
                        body = partial(self.run, count, part, held)
                        self._graphs[count, part, width] = device.capture(body, lane), held
            for most in self.makes:
                body = partial(self.run_drafts, count, most)
                self._makes[count, most] = device.capture(body, lane)
            self._folds[count] = device.capture(partial(self.run_fold, count), lane)

    def held(self, count: int, width: int) -> Held:
        """Nothing yet, for a round of ``count`` rows."""
        return Held(width, self._logits[: count * width])

    def replay(self, count: int, part: Part, width: int) -> Held:
        graph, held = self._graphs[count, part, width]
        graph.replay()
        return held

    def replay_drafts(self, count: int, wanted: int) -> None:
        """Enqueue the least number of drafts that are at least ``wanted``, for what the round
        before it accepted."""
        if wanted:
            most = min(most for most in self.makes if most >= wanted)
            self._makes[count, most].replay()

    def replay_changes(self) -> None:
        assert self._changes is not None
        self._changes.replay()

    def replay_fold(self, count: int) -> None:
        self._folds[count].replay()

    def run(self, count: int, part: Part, held: Held) -> None:
        """Enqueue one part; FINISH goes on from what ``held`` holds."""
        import torch

        with torch.inference_mode():
            ran = held.ran if part is Part.FINISH else self._forward(count, held)
            assert ran is not None
            if part is Part.FORWARD:
                held.ran = ran  # what is not kept here is the next graph's to use
            else:
                self._finish(count, ran, part)

    def run_drafts(self, count: int, most: int) -> None:
        """Enqueue ``most`` drafts behind what was accepted. Where there is no use for one nothing
        is stored for it."""
        import torch

        with torch.inference_mode():
            settled, answer = self._settled[count], self._inputs.drafts(count)
            tables, columns = self._lanes.tables.block_tables, []
            for place, (_, wide) in enumerate(self._drafter.widths(most)):
                at = settled.tables[place], settled.starts[place], settled.live[place]
                columns.append((PagedRows(tables, *at, wide), settled.positions[:, place]))
            hidden = None
            if self._hidden is not None:
                hidden = self._hidden.index_select(0, settled.last)
            drafter, settings = self._drafter, None
            if drafter.laws is not None:
                settings = settings_at(self._lanes.settings, settled.tables[0].long())
            made = drafter.propose(settled.tokens, hidden, columns, settings)
            drafts = made.drafts[:, :most]
            self._model.ops.keep_drafts(drafts, settled, self._kept, answer, drafter.block)

    def run_fold(self, count: int) -> None:
        """Enqueue the states after what was accepted, each into its target."""
        import torch

        with torch.inference_mode():
            ops, rows = self._model.ops, self._inputs.fold_rows(count)
            folds = ops.resolve_folds(rows, self._kept, self._hidden, self._drafter.hidden)
            self._state.fold(ops, folds.slots, folds.counts, folds.targets)

    def run_changes(self) -> None:
        """Enqueue the block table entries that came with a round's rows."""
        import torch

        with torch.inference_mode():
            tables = self._lanes.tables.block_tables
            lanes, indices, pages = self._inputs.changes()
            tables.view(-1).index_copy_(0, lanes.long() * tables.shape[1] + indices, pages)

    def _forward(self, count: int, held: Held) -> Ran:
        model, width = self._model, held.width
        tables, given = self._lanes.tables, self._inputs.rows(count, width)
        rows = model.ops.resolve_rows(given, self._kept, tables.tokens)
        paged = PagedRows(tables.block_tables, rows.tables, rows.starts, rows.live, width)
        place, taps = model.place(paged, rows.positions), self._drafter.taps()
        route = VerifyRoute(model.ops, place, rows.slots, rows.slots)
        stream = model.forward(rows.ids, route, self._state, taps)
        seen = self._drafter.seen(stream.residual, taps, rows.slots, self._hidden, rows.places)
        return Ran(rows, model.logits(stream, out=held.logits), seen, place)

    def _finish(self, count: int, ran: Ran, part: Part) -> None:
        """Draw, accept, and leave what the drafts, the next round and the host go on from."""
        rows, drafter, width = ran.rows, self._drafter, ran.place.rows.width
        tokens, broken = self._draws(rows, count, ran.logits, part)
        answer = VerifyAnswer(*self._inputs.answers(count, width))
        counts = None if part is Part.GREEDY else self._lanes.counts
        self._model.ops.settle_drafts(
            tokens, broken, rows, answer, self._settled[count], self._kept, drafter.block, counts
        )
        drafter.after_rows(rows.ids, ran.seen, ran.place)


def widths_of(most: int) -> tuple[int, ...]:
    """Powers of two below ``most``, and it."""
    powers = [1 << place for place in range(most.bit_length()) if 1 << place < most]
    return (*powers, most)
