"""What verified rows take: draws as plain decoding makes them, or by the laws of drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import DrawPurpose, TokenMasks
from ninfer_core.ops.contracts.verifying import ResolvedRows
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.drawn_drafts import DraftLaws, accepted_tokens
from ninfer_qwen3_5.program.queued.lanes import LaneState, settings_at
from ninfer_qwen3_5.program.queued.rounds import Part

if TYPE_CHECKING:
    from torch import Tensor


class SpecDraws:
    """Over the lanes' settings and counts, and the ``masks`` of parts that have them. ``laws`` are
    those of drafts that were drawn, if they are."""

    def __init__(
        self,
        model: TextModel,
        lanes: LaneState,
        masks: TokenMasks,
        laws: DraftLaws | None,
    ) -> None:
        self._model = model
        self._lanes = lanes
        self._masks = masks
        self._laws = laws

    def __call__(
        self, rows: ResolvedRows, count: int, logits: Tensor, part: Part
    ) -> tuple[Tensor, Tensor]:
        """What each row takes, as plain decoding would, i32[B * W], and whether it is broken."""
        model, lanes, width = self._model, self._lanes, logits.shape[0] // count
        if part is Part.GREEDY:
            drawn = model.ops.argmax_rows(logits, model.addressable)
            return drawn.tokens, drawn.broken
        masks = None
        if part is Part.FINISH:
            taken = count * width
            masks = TokenMasks(self._masks.words[:taken], self._masks.active[:taken])
        drafts = rows.ids.view(count, width)[:, 1:].contiguous() if width > 1 else None
        if self._laws is not None and drafts is not None:
            return self._draw_by_laws(self._laws, rows, logits, masks, drafts)
        drawn = model.ops.draw_rows(
            logits,
            model.addressable,
            lanes.settings,
            lanes.counts,
            rows.lanes,
            rows.chosen,
            DrawPurpose.DECODE,
            masks,
            drafts,
        )
        return drawn.tokens, drawn.broken

    def _draw_by_laws(
        self,
        laws: DraftLaws,
        rows: ResolvedRows,
        logits: Tensor,
        masks: TokenMasks | None,
        drafts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The same with drafts i32[B, W - 1] that were drawn."""
        model, lanes, positions = self._model, self._lanes, rows.chosen
        at = rows.tables.long()
        settings = settings_at(lanes.settings, at)
        law, tried = laws.of(at, rows.starts, drafts, rows.live - 1)
        processed = model.ops.process_logits(
            logits, settings, lanes.counts, at, positions, drafts, masks
        )
        tokens = accepted_tokens(model.ops, processed, settings, drafts, tried, law, positions)
        return tokens, model.ops.nonfinite_rows(logits, model.addressable)
