"""A DFlash model as a drafter: one forward pass drafts a whole block.

The context is what the target said of every committed position: ``c_t = norm(fc [h_t of each
tapped layer])``, of which each layer keeps keys and values at column t and nothing else. A block is
``[anchor, MASK, .. MASK]`` at the columns from the anchor's own on; row j gives the token of its
own position, and the anchor's row gives none. Embedding and head are the target's. A block's keys
and values lie at its columns until the target's features of these positions replace them.
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
from ninfer_core.ops.contracts.values import KvCache, SamplingRows
from ninfer_core.ops.rope import inverse_frequencies
from ninfer_spec_dflash.attention import Rotated
from ninfer_spec_dflash.choice import Choice, Drafted, Largest, Selector
from ninfer_spec_dflash.config import DRAFT_FEATURES, DFlashConfig
from ninfer_spec_dflash.fit import read
from ninfer_spec_dflash.layers import ConvLayers, Layers, PlainLayers
from ninfer_spec_dflash.plugin import MOST_DRAFTS

NEVER = torch.finfo(torch.float32).min
"""The logit of what is not drafted; an infinity would count as a broken row."""


class DFlashDrafter:
    """See :class:`ninfer_core.contract.speculation.DraftBackend`."""

    block = True

    def __init__(self, config: DFlashConfig) -> None:
        self.component = config.component
        self.max_drafts = min(config.block_size - 1, MOST_DRAFTS)
        shape = CacheShape(config.num_key_value_heads, config.head_dim)
        self.caches = (shape,) * len(config.layers)
        self._config = config

    def needs(self) -> TargetFeatures:
        return TargetFeatures(taps=self._config.taps)

    def bind(self, target: TargetParts) -> None:
        config, size = self._config, self._config.hidden_size
        self._target = target
        self._fc = target.matrix("fc.weight", (size, len(config.taps) * size), DRAFT_FEATURES)
        self._context_scale = target.plain_scale("hidden_norm.weight", size)
        self._final_scale = target.plain_scale("norm.weight", size)
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta)
        self._frequencies = target.place("inverse_frequencies", frequencies)
        axes = torch.zeros(config.head_dim // 2, dtype=torch.int64)
        self._axes = target.place("rope_axes", axes)
        self._layers = self._bound_layers(target)
        self._choice = self._bound_choice(target)

    def observe(
        self, ids: Tensor, rows: TargetRows, caches: Sequence[KvCache], place: DraftPlace
    ) -> None:
        assert rows.taps is not None
        ops, eps = self._target.ops, self._config.rms_norm_eps
        features = place.linear(rows.taps, self._fc)
        context = ops.rms_norm(features, self._context_scale, eps)
        at = self._rotated(place)
        for part, cache in zip(self._layers.parts, caches, strict=True):
            attention = part.attention
            attention.remember(place.linear(context, attention.keys_values), cache, at)

    def propose(
        self,
        ids: Tensor,
        rows: TargetRows,
        caches: Sequence[KvCache],
        places: Sequence[DraftPlace],
        drawing: SamplingRows | None = None,
    ) -> Proposal:
        """All drafts of all sequences in one pass."""
        (place,), target = places, self._target
        width, count = place.rows.width, ids.shape[0]
        residual = self._layers.run(self._block(ids, width), caches, self._rotated(place))
        drafted = residual.view(count, width, -1)[:, 1:].reshape(count * (width - 1), -1)
        stream = target.ops.open_stream(drafted, self._final_scale)
        logits = target.logits(stream, self._config.rms_norm_eps)
        logits[:, self._config.mask_token_id] = NEVER
        positions = place.columns.view(count, width)[:, 1:].flatten()
        return self._choice(Drafted(drafted, logits, ids, positions, drawing))

    def _block(self, ids: Tensor, width: int) -> Tensor:
        """Embeddings x[B * W, H] of ``[anchor, MASK, ..]``."""
        tokens = ids.new_full((ids.shape[0], width), self._config.mask_token_id)
        tokens[:, 0].copy_(ids)
        embedded = self._target.embed(tokens.flatten())
        scale = self._config.embedding_scale
        return embedded if scale == 1.0 else embedded * scale

    def _rotated(self, place: DraftPlace) -> Rotated:
        positions = place.columns.expand(3, -1).contiguous()
        cos, sin = self._target.ops.rope_angles(positions, self._frequencies, self._axes)
        return Rotated(place, cos, sin)

    def _bound_layers(self, target: TargetParts) -> Layers:
        if self._config.conv is None:
            return PlainLayers(target, self._config, self._final_scale)
        return ConvLayers(target, self._config, self._config.conv)

    def _bound_choice(self, target: TargetParts) -> Choice:
        if self._config.selector is None:
            return Largest(target, self._config)
        return Selector(target, self._config, self._config.selector, self._final_scale)


def open_dflash(target: TargetFacts) -> DFlashDrafter:
    """A drafter of the first generation that is not bound yet. Raises ArtifactError."""
    return DFlashDrafter(read("dflash", target))


def open_dflash2(target: TargetFacts) -> DFlashDrafter:
    """The same of the second."""
    return DFlashDrafter(read("dflash2", target))
