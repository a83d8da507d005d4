"""What the text model lends a draft backend (contract: ``TargetParts``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ninfer_core.ops.contracts.values import (
    AttentionMixer,
    KvCache,
    PagedRows,
    Stream,
    WeightMatrix,
)
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.model.parameters import AttentionParameters, LayerParameters
from ninfer_qwen3_5.model.placement import Placement
from ninfer_qwen3_5.model.text import TextModel, mixer_of

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.contract.speculation import AttentionLayer, DraftPlace
    from ninfer_qwen3_5.load.text import TextLoader

FIRST_COLUMN = 1
"""Column 0 of a cache whose columns pair a token with the hidden row before it has none."""


@dataclass(frozen=True, slots=True)
class LentPlace:
    """Rows of a call of the drafter (contract: ``DraftPlace``)."""

    placement: Placement
    linear: Callable[[Tensor, WeightMatrix], Tensor]

    @property
    def rows(self) -> PagedRows:
        return self.placement.rows

    @property
    def columns(self) -> Tensor:
        return columns_of(self.placement.rows)

    @property
    def kv_slots(self) -> Tensor:
        return self.placement.kv_slots

    @staticmethod
    def of_chunk(ops: Ops, placement: Placement) -> LentPlace:
        return LentPlace(placement, ops.linear_prefill)

    @staticmethod
    def of_rows(ops: Ops, placement: Placement, first: int = 0) -> LentPlace:
        """``first`` is the first column that rows of the decode route see."""
        rows = replace(placement.rows, first=first)
        return LentPlace(replace(placement, rows=rows), ops.linear_decode)


def columns_of(rows: PagedRows) -> Tensor:
    """Places in their sequences of the rows, i32[B * W]."""
    import torch

    steps = torch.arange(rows.width, dtype=torch.int32, device=rows.starts.device)
    return (rows.starts.unsqueeze(1) + steps).flatten()


class LentLayer:
    """A full-attention decoder layer (contract: ``AttentionLayer``)."""

    def __init__(self, parameters: LayerParameters, mixer: AttentionMixer, ops: Ops) -> None:
        self._layer = parameters
        self._mixer = mixer
        self._ops = ops

    def store(self, x: Tensor, cache: KvCache, place: DraftPlace) -> None:
        assert isinstance(place, LentPlace)
        mixer, where = self._mixer, place.placement
        heads, kv, size, rows = mixer.heads, mixer.kv_heads, mixer.head_size, x.shape[0]
        normed = self._ops.rms_norm(x, self._layer.input_scale, mixer.eps)
        stacked = place.linear(normed, self._layer.mixer.inputs)
        q_gate, k, v = stacked.split_with_sizes([heads * 2 * size, kv * size, kv * size], dim=1)
        self._ops.qk_norm_rope_store(
            q_gate.view(rows, heads, 2 * size)[:, :, :size],
            k.view(rows, kv, size),
            v.view(rows, kv, size),
            mixer.q_scale,
            mixer.k_scale,
            mixer.eps,
            where.cos,
            where.sin,
            cache,
            where.kv_slots,
        )

    def run(self, x: Tensor, cache: KvCache, place: DraftPlace, scale: Tensor) -> Stream:
        assert isinstance(place, LentPlace)
        ops, layer, mixer, where = self._ops, self._layer, self._mixer, place.placement
        stream = ops.open_stream(x, layer.input_scale)
        stacked = ops.norm_linear(stream, mixer.eps, layer.mixer.inputs)
        mixed = ops.attention_mix_decode(
            stacked, mixer, where.cos, where.sin, cache, where.rows, where.kv_slots
        )
        stream = ops.linear_add(mixed, layer.mixer.output, stream, layer.post_scale)
        inner = ops.norm_swiglu(stream, mixer.eps, layer.mlp.inputs)
        return ops.linear_add(inner, layer.mlp.output, stream, scale)


class LentParts:
    """Parts of ``model``; the drafter's own weights are those of component ``component``, whose
    configuration is ``config``."""

    def __init__(
        self,
        model: TextModel,
        loader: TextLoader,
        component: str,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config or {}
        self._model = model
        self._loader = loader
        self._component = component
        self.ops = model.ops
        self.hidden_size = model.config.hidden_size
        self.eps = model.config.rms_norm_eps
        self.addressable = model.addressable

    def embed(self, ids: Tensor) -> Tensor:
        return self.ops.embedding(ids, self._model.parameters.embedding)

    def draft_inputs(
        self,
        ids: Tensor,
        token_scale: Tensor,
        hidden: Tensor,
        hidden_scale: Tensor,
        inner_scale: Tensor | None = None,
    ) -> Tensor:
        table, eps = self._model.parameters.embedding, self.eps
        return self.ops.draft_inputs(
            ids, table, token_scale, hidden, hidden_scale, eps, inner_scale
        )

    def logits(self, stream: Stream, eps: float | None = None) -> Tensor:
        return self._model.logits(stream, eps)

    def matrix(self, name: str, shape: tuple[int, int], use: str) -> WeightMatrix:
        return self.stack({name: shape}, use)

    def stack(self, shapes: Mapping[str, tuple[int, ...]], use: str) -> WeightMatrix:
        return self._loader.stack(f"{self._component}.", shapes, use)

    def vector(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._loader.vector(f"{self._component}.{name}", shape)

    def table(self, name: str, shape: tuple[int, int]) -> Tensor:
        return self._loader.table(f"{self._component}.", name, shape)

    def place(self, name: str, values: Tensor) -> Tensor:
        return self._loader.place(f"{self._component}.{name}", values)

    def plain_scale(self, name: str, size: int) -> Tensor:
        return self.vector(name, (size,))

    def scale(self, name: str) -> Tensor:
        return self._loader.scale(f"{self._component}.{name}", (self.hidden_size,))

    def attention_layer(self, prefix: str) -> AttentionLayer:
        layer = self._loader.layer(f"{self._component}.{prefix}", full=True)
        mixer = mixer_of(layer.mixer, self._model.config)
        assert isinstance(layer.mixer, AttentionParameters)
        assert isinstance(mixer, AttentionMixer)
        return LentLayer(layer, mixer, self.ops)
