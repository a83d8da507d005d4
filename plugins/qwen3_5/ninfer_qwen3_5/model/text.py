"""The decoder stack: token ids in, residual rows and logits out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import (
    AttentionMixer,
    GdnMixer,
    KvCache,
    PagedRows,
    Stream,
)
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.model.parameters import AttentionParameters, GdnParameters, TextParameters
from ninfer_qwen3_5.model.placement import Placement
from ninfer_qwen3_5.model.routes import Route
from ninfer_qwen3_5.model.state import GdnState, LayerState, ModelState
from ninfer_qwen3_5.model.taps import Taps

if TYPE_CHECKING:
    from torch import Tensor


class TextModel:
    """Weights, config and ops of one text model; holds no sequence state.

    ``addressable`` counts the vocabulary rows that stand for tokens; the head's others never win.
    """

    def __init__(
        self, config: TextConfig, parameters: TextParameters, ops: Ops, addressable: int
    ) -> None:
        self.config = config
        self.addressable = addressable
        self.parameters = parameters
        self.ops = ops
        self._mixers = tuple(mixer_of(layer.mixer, config) for layer in parameters.layers)

    def place(self, rows: PagedRows, positions_3T: Tensor) -> Placement:
        """Rotary tables and cache places of the rows of one call."""
        slots, cos, sin = self.ops.place_rows(
            rows, positions_3T, self.parameters.inverse_frequencies, self.parameters.rope_axes
        )
        return Placement(rows, slots, cos, sin)

    def forward(
        self, ids_T: Tensor, route: Route, state: ModelState, taps: Taps | None = None
    ) -> Stream:
        """Run i32[T] tokens; returns the residual stream before the final norm. ``taps`` keeps
        what it asks for of the rows.

        *Effect*: keys and values of the rows; state or records as the route says.
        """
        eps, layers = self.config.rms_norm_eps, self.parameters.layers
        following = [*(layer.input_scale for layer in layers[1:]), self.parameters.final_scale]
        stream = route.open(ids_T, self.parameters.embedding, layers[0].input_scale)
        for index, (layer, mixer, memory, next_scale) in enumerate(
            zip(layers, self._mixers, state.layers, following, strict=True)
        ):
            stacked = route.norm_linear(stream, eps, layer.mixer.inputs)
            mixed = _mix(stacked, mixer, memory, route)
            stream = route.linear_add(mixed, layer.mixer.output, stream, layer.post_scale)
            inner = route.norm_swiglu(stream, eps, layer.mlp.inputs)
            stream = route.linear_add(inner, layer.mlp.output, stream, next_scale)
            if taps is not None:
                taps.keep(index, stream.residual)
        return stream

    def hidden(self, residual_TH: Tensor) -> Tensor:
        """The rows after the final norm, [T, H]."""
        return self.ops.rms_norm(residual_TH, self.parameters.final_scale, self.config.rms_norm_eps)

    def logits(self, stream: Stream, eps: float | None = None, out: Tensor | None = None) -> Tensor:
        """f32[T, V] of a stream's rows, padding rows of the head at -inf; in ``out``, if given.
        ``eps`` is that of the norm, the model's if none is given."""
        eps = self.config.rms_norm_eps if eps is None else eps
        return self.ops.norm_head(stream, eps, self.parameters.head, self.addressable, out)

    def row_logits(self, residual_TH: Tensor) -> Tensor:
        """f32[T, V] of some residual rows of a chunk, as the decode route would give them."""
        return self.logits(self.ops.open_stream(residual_TH, self.parameters.final_scale))


def _mix(
    stacked_TN: Tensor, mixer: AttentionMixer | GdnMixer, memory: LayerState, route: Route
) -> Tensor:
    if isinstance(mixer, AttentionMixer):
        assert isinstance(memory, KvCache)
        return route.attend(stacked_TN, mixer, memory)
    assert isinstance(memory, GdnState)
    return route.recur(stacked_TN, mixer, memory)


def mixer_of(
    weights: AttentionParameters | GdnParameters, config: TextConfig
) -> AttentionMixer | GdnMixer:
    """What the mixer ops of a layer take."""
    if isinstance(weights, AttentionParameters):
        return AttentionMixer(
            q_scale=weights.q_scale,
            k_scale=weights.k_scale,
            eps=config.rms_norm_eps,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_size=config.head_dim,
        )
    return GdnMixer(
        conv=weights.conv,
        decay_rate=weights.decay_rate,
        dt_bias=weights.dt_bias,
        norm_scale=weights.norm_scale,
        eps=config.rms_norm_eps,
        key_heads=config.linear_num_key_heads,
        key_size=config.linear_key_head_dim,
        value_heads=config.linear_num_value_heads,
        value_size=config.linear_value_head_dim,
    )
