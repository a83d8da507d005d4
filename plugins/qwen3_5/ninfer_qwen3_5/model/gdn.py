"""The gated delta net mixer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.model.parameters import GdnParameters
from ninfer_qwen3_5.model.routes import Route
from ninfer_qwen3_5.model.state import GdnState

if TYPE_CHECKING:
    from torch import Tensor


def gated_delta_net(
    x_TH: Tensor, weights: GdnParameters, config: TextConfig, state: GdnState, route: Route
) -> Tensor:
    """Projection, causal convolution, delta rule, gated norm, projection; returns [T, H]."""
    value_heads, value_size = config.linear_num_value_heads, config.linear_value_head_dim
    values = value_heads * value_size
    channels = config.conv_channels
    rows = x_TH.shape[0]
    stacked = route.linear(x_TH, weights.inputs)
    mixed, z, b, a = stacked.split_with_sizes([channels, values, value_heads, value_heads], dim=1)
    decay, beta = route.ops.gdn_gates(a, b, weights.decay_rate, weights.dt_bias)
    qkv = route.convolve(mixed, weights.conv, state)
    o_Tnd = route.recur(qkv, decay, beta, state, config.linear_num_key_heads)
    gate = z.view(rows, value_heads, value_size)
    normed = route.ops.gated_rms_norm(o_Tnd, gate, weights.norm_scale, config.rms_norm_eps)
    return route.linear(normed.reshape(rows, values), weights.output)
