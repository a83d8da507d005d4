"""The decoder stack: token ids in, normed hidden rows out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import KvCache, PagedRows
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.model.attention import attention
from ninfer_qwen3_5.model.gdn import gated_delta_net
from ninfer_qwen3_5.model.parameters import (
    AttentionParameters,
    LayerParameters,
    MlpParameters,
    TextParameters,
)
from ninfer_qwen3_5.model.routes import Placement, Route
from ninfer_qwen3_5.model.state import GdnState, LayerState, ModelState

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

    def place(self, rows: PagedRows, positions_3T: Tensor) -> Placement:
        """Rotary tables and cache places of the rows of one call."""
        cos, sin = self.ops.rope_angles(
            positions_3T, self.parameters.inverse_frequencies, self.parameters.rope_axes
        )
        return Placement(rows, self.ops.kv_slots(rows), cos, sin)

    def forward(self, ids_T: Tensor, route: Route, state: ModelState) -> Tensor:
        """Run i32[T] tokens; returns the rows after the final norm, [T, H].

        *Effect*: keys and values of the rows; state or records as the route says.
        """
        eps, layers = self.config.rms_norm_eps, self.parameters.layers
        residual = self.ops.embedding(ids_T, self.parameters.embedding)
        x_TH = self.ops.rms_norm(residual, layers[0].input_scale, eps)
        following = [*(layer.input_scale for layer in layers[1:]), self.parameters.final_scale]
        for layer, memory, next_scale in zip(layers, state.layers, following, strict=True):
            mixed = self._mix(x_TH, layer, memory, route)
            x_TH, residual = self.ops.add_rms_norm(mixed, residual, layer.post_scale, eps)
            fed = self._feed_forward(x_TH, layer.mlp, route)
            x_TH, residual = self.ops.add_rms_norm(fed, residual, next_scale, eps)
        return x_TH

    def logits(self, hidden_TH: Tensor) -> Tensor:
        """f32[T, V] of the given rows, padding rows of the head at -inf."""
        return self.ops.lm_head(hidden_TH, self.parameters.head, self.addressable)

    def _mix(
        self, x_TH: Tensor, layer: LayerParameters, memory: LayerState, route: Route
    ) -> Tensor:
        if isinstance(layer.mixer, AttentionParameters):
            assert isinstance(memory, KvCache)
            return attention(x_TH, layer.mixer, self.config, memory, route)
        assert isinstance(memory, GdnState)
        return gated_delta_net(x_TH, layer.mixer, self.config, memory, route)

    def _feed_forward(self, x_TH: Tensor, mlp: MlpParameters, route: Route) -> Tensor:
        return route.linear(self.ops.swiglu(route.linear(x_TH, mlp.inputs)), mlp.output)
