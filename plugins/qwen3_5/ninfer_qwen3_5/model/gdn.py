"""The gated delta net mixer over one chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import GdnMixer
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.model.state import GdnState

if TYPE_CHECKING:
    from torch import Tensor


def gdn_chunk(
    stacked_TN: Tensor, mixer: GdnMixer, state: GdnState, slot: Tensor, ops: Ops
) -> Tensor:
    """Causal convolution, delta rule and gated norm between the projections; [T, nv * dv].

    stacked holds q|k|v, z, b and a; the sequence's state lies in ``slot`` i64[1].
    """
    heads, size, rows = mixer.value_heads, mixer.value_size, stacked_TN.shape[0]
    parts = [mixer.channels, heads * size, heads, heads]
    mixed, z, b, a = stacked_TN.split_with_sizes(parts, dim=1)
    decay, beta = ops.gdn_gates(a, b, mixer.decay_rate, mixer.dt_bias)
    qkv = ops.causal_conv_chunk(mixed, mixer.conv, state.history, slot)
    o_Tnd = ops.gdn_chunk(qkv, decay, beta, state.recurrent, slot, mixer.key_heads)
    gate = z.view(rows, heads, size)
    return ops.gated_rms_norm(o_Tnd, gate, mixer.norm_scale, mixer.eps).reshape(rows, heads * size)
