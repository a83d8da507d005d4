"""Gated full attention with per-head norms and partial rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import KvCache
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.model.parameters import AttentionParameters
from ninfer_qwen3_5.model.routes import Route

if TYPE_CHECKING:
    from torch import Tensor


def attention(
    x_TH: Tensor, weights: AttentionParameters, config: TextConfig, cache: KvCache, route: Route
) -> Tensor:
    """``W_o (softmax(q k^T / sqrt(D)) v * sigmoid(gate))``; returns [T, H]."""
    heads, kv, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    rows = x_TH.shape[0]
    stacked = route.linear(x_TH, weights.inputs)
    q_gate, k, v = stacked.split_with_sizes([heads * 2 * size, kv * size, kv * size], dim=1)
    q, gate = q_gate.view(rows, heads, 2 * size).split_with_sizes([size, size], dim=2)
    q_TnD = route.ops.qk_norm_rope_store(
        q,
        k.view(rows, kv, size),
        v.view(rows, kv, size),
        weights.q_scale,
        weights.k_scale,
        config.rms_norm_eps,
        route.place.cos,
        route.place.sin,
        cache,
        route.place.kv_slots,
    )
    attended = route.attend(q_TnD, cache, size**-0.5)
    gated = route.ops.sigmoid_gate(attended, gate)
    return route.linear(gated.reshape(rows, heads * size), weights.output)
