"""The multi-token prediction head as a drafter.

Column c pairs token x_c with the target's hidden row h_{c-1}, after its final norm:
``u = fc [norm(embed(x_c)) ; norm(h_{c-1})]``, one gated full-attention layer, ``norm``, the
target's head (tensors ``mtp.*`` of Qwen3.5 checkpoints). Its keys and values depend on tokens
``0 .. c`` alone, so taking a token in is writing them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ninfer_core.contract.speculation import (
    CacheShape,
    DraftPlace,
    Proposal,
    TargetFeatures,
    TargetParts,
    TargetRows,
)
from ninfer_core.hookspecs import TargetFacts
from ninfer_core.ops.contracts.values import Candidates, KvCache, SamplingRows
from ninfer_core.ops.drawn_drafts import candidates_of, draw, stacked_law
from ninfer_spec_mtp.plugin import MOST_DRAFTS

_USE = "mtp_input"


class MtpDrafter:
    """See :class:`ninfer_core.contract.speculation.DraftBackend`."""

    component = "mtp"
    block = False
    max_drafts = MOST_DRAFTS

    def __init__(self, cache: CacheShape) -> None:
        self.caches = (cache,)

    def needs(self) -> TargetFeatures:
        return TargetFeatures(final_hidden_post_norm=True)

    def bind(self, target: TargetParts) -> None:
        size = target.hidden_size
        self._target = target
        self._token_scale = target.scale("pre_fc_norm_embedding.weight")
        self._hidden_scale = target.scale("pre_fc_norm_hidden.weight")
        self._fc = target.matrix("fc.weight", (size, 2 * size), _USE)
        self._layer = target.attention_layer("layers.0.")
        self._norm_scale = target.scale("norm.weight")

    def observe(
        self, ids: Tensor, rows: TargetRows, caches: Sequence[KvCache], place: DraftPlace
    ) -> None:
        assert rows.before is not None
        self._layer.store(self._input(ids, rows.before, place), caches[0], place)

    def propose(
        self,
        ids: Tensor,
        rows: TargetRows,
        caches: Sequence[KvCache],
        places: Sequence[DraftPlace],
        drawing: SamplingRows | None = None,
    ) -> Proposal:
        """Each step goes on from its own normed output, as the head was trained to."""
        target, ops, hidden, inner = self._target, self._target.ops, rows.before, None
        assert hidden is not None
        drafts: list[Tensor] = []
        listed: list[Candidates] = []
        for place in places:
            x = self._input(ids, hidden, place, inner)
            stream = self._layer.run(x, caches[0], place, self._norm_scale)
            logits = target.logits(stream)
            if drawing is None:
                ids = ops.argmax_rows(logits, target.addressable).tokens
            else:
                found = candidates_of(ops, logits, target.addressable)
                ids, law = draw(ops, found, drawing, place.columns + 1)
                listed.append(law)
            drafts.append(ids)
            hidden, inner = stream.residual, self._norm_scale
        return Proposal(torch.stack(drafts, dim=1), stacked_law(listed) if listed else None)

    def _input(
        self, ids: Tensor, hidden: Tensor, place: DraftPlace, inner: Tensor | None = None
    ) -> Tensor:
        """The layer's rows [T, H]: embedding first, hidden second. ``inner`` is the scale of a norm
        that hidden rows still lack."""
        token_scale, hidden_scale = self._token_scale, self._hidden_scale
        both = self._target.draft_inputs(ids, token_scale, hidden, hidden_scale, inner)
        return place.linear(both, self._fc)


def open_drafter(target: TargetFacts) -> MtpDrafter:
    """A drafter that is not bound yet; its layer is one of the target's kind."""
    return MtpDrafter(CacheShape(target.kv_heads, target.head_size))
