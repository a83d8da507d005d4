"""Gated full attention of one chunk, with per-head norms and partial rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import AttentionMixer, KvCache
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.model.placement import Placement

if TYPE_CHECKING:
    from torch import Tensor


def attention_chunk(
    stacked_TN: Tensor, mixer: AttentionMixer, cache: KvCache, place: Placement, ops: Ops
) -> Tensor:
    """``softmax(q k^T / sqrt(D)) v * sigmoid(gate)`` between the projections; [T, nh * D].

    stacked holds, per query head, its query and its gate, then keys, then values.
    """
    heads, kv, size, rows = mixer.heads, mixer.kv_heads, mixer.head_size, stacked_TN.shape[0]
    q_gate, k, v = stacked_TN.split_with_sizes([heads * 2 * size, kv * size, kv * size], dim=1)
    q, gate = q_gate.view(rows, heads, 2 * size).split_with_sizes([size, size], dim=2)
    q_TnD = ops.qk_norm_rope_store(
        q,
        k.view(rows, kv, size),
        v.view(rows, kv, size),
        mixer.q_scale,
        mixer.k_scale,
        mixer.eps,
        place.cos,
        place.sin,
        cache,
        place.kv_slots,
    )
    attended = ops.paged_prefill_attention(q_TnD, cache, place.rows, size**-0.5)
    return ops.sigmoid_gate(attended, gate).reshape(rows, heads * size)
