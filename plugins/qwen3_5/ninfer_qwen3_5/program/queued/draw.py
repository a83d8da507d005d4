"""The first token after a prompt, drawn from the last row of its last chunk."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.contract.units import UnitKind
from ninfer_core.ops.contracts.values import Drawn, DrawPurpose, PagedRows, TokenMasks
from ninfer_qwen3_5.model.lending import columns_of
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.drafting import Drafter, live_rows
from ninfer_qwen3_5.program.queued.chunks import ChunkRun
from ninfer_qwen3_5.program.queued.lanes import LaneState, settings_at
from ninfer_qwen3_5.program.queued.launches import DrawnLaunch
from ninfer_qwen3_5.program.queued.masks import MaskRing
from ninfer_qwen3_5.program.queued.results import Coming, ComingDraw, ComingLogprobs, fetch
from ninfer_qwen3_5.program.queued.ring import Drawing
from ninfer_qwen3_5.program.queued.scores import PromptScores
from ninfer_qwen3_5.program.units import UnitRow

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Lane


class PromptLaunch(DrawnLaunch):
    """A prompt's last chunk. Enqueues the head at once; masks and the draw at ``finish``."""

    kind = UnitKind.PREFILL

    def __init__(
        self,
        model: TextModel,
        lanes: LaneState,
        masks: MaskRing,
        row: UnitRow,
        run: ChunkRun,
        scores: PromptScores,
        lane: Lane,
        drafter: Drafter | None = None,
    ) -> None:
        import torch

        super().__init__([row])
        self._model = model
        self._lanes = lanes
        self._masks = masks
        self._row = row
        self._scored = scores
        self._lane = lane
        self._position = run.stop
        with torch.inference_mode():
            self._logits = model.row_logits(run.residual[-1:])
        self._drafter = drafter
        self._drafts: Coming | None = None
        self._drawn: ComingDraw | None = None
        self._logprobs: ComingLogprobs | None = None

    def _draw(self) -> Rows[bool] | None:
        import torch

        with torch.inference_mode():
            masks, dead = self._fill()
            drawn = self._drawn_row(masks)
            self._drawn = ComingDraw.of(drawn, self._lane)
            if self._drafter is not None:
                self._draft(self._drafter, drawn.tokens)
            top = self._row.work.sequence.top
            if top is not None:
                listed = self._model.ops.logprobs(self._logits, drawn.tokens, top)
                self._logprobs = ComingLogprobs.of(listed, [top], self._lane)
        return [dead]

    def _wait(self) -> Drawing:
        assert self._drawn is not None
        drawing = self._drawn.wait()
        if self._drafts is not None:
            drafts = self._drafts.wait()[0].flatten().tolist()
            self._row.work.proposed = tuple(drafts[: self._row.work.useful_drafts(1)])
        return drawing

    def _draft(self, drafter: Drafter, token: Tensor) -> None:
        """Draft behind the token, as many as the budget has use for."""
        work, lanes = self._row.work, self._lanes
        wanted = work.useful_drafts(1)
        if wanted <= 0:
            return
        tables, row = lanes.tables.block_tables, lanes.index(work.sequence.row).int()
        columns = []
        useful = lanes.once * wanted
        for place, (first, width) in enumerate(drafter.widths(wanted)):
            live = live_rows(useful, place, block=drafter.block)
            column = PagedRows(tables, row, self._position + first, live, width)
            places = columns_of(column) + work.sequence.rope_delta
            columns.append((column, places.expand(3, -1).contiguous()))
        kept, slot = drafter.hidden, work.target_slot
        hidden = None if kept is None else kept[slot : slot + 1]
        settings = None
        if drafter.laws is not None:
            settings = settings_at(lanes.settings, lanes.index(work.sequence.row))
        drafts = drafter.propose(token, hidden, columns, settings).drafts
        self._drafts = fetch([drafts], self._lane)

    def _listed(self, tokens: Rows[int]) -> Rows[tuple[TokenLogprobs, ...]]:
        return [()] if self._logprobs is None else self._logprobs.wait(tokens)

    def _scores(self) -> tuple[TokenLogprobs, ...]:
        return self._scored()

    def _drawn_row(self, masks: TokenMasks | None) -> Drawn:
        """Draw, and leave the token where the next round looks for it."""
        lanes, sequence = self._lanes, self._row.work.sequence
        row = lanes.index(sequence.row)
        if sequence.plain and masks is None:
            drawn = self._model.ops.argmax_rows(self._logits, self._model.addressable)
        else:
            drawn = self._model.ops.draw_rows(
                self._logits,
                self._model.addressable,
                lanes.settings,
                lanes.counts,
                row,
                self._position,
                DrawPurpose.PREFILL,
                masks,
            )
        lanes.tables.tokens.index_copy_(0, row, drawn.tokens)
        self._model.ops.count_tokens(lanes.counts, row, drawn.tokens.view(1, 1), lanes.once)
        return drawn

    def _fill(self) -> tuple[TokenMasks | None, bool]:
        if self._row.masks is None:
            return None, False
        return self._masks.fill_prompt(self._row.masks)
