"""The fused ops as what they are defined by: compositions of the ops next door."""

from __future__ import annotations

from torch import Tensor

from ninfer_core.ops.contracts.values import (
    AttentionMixer,
    GdnMixer,
    GdnRecords,
    KvCache,
    PagedRows,
    Stream,
    WeightMatrix,
)
from ninfer_core.ops.reference import attention, conv, gdn, kv_store, linear, norm


def open_stream(residual: Tensor, scale: Tensor) -> Stream:
    return Stream(residual, scale)


def norm_linear(stream: Stream, eps: float, weight: WeightMatrix) -> Tensor:
    return linear.linear_decode(_normed(stream, eps), weight)


def linear_add(x: Tensor, weight: WeightMatrix, stream: Stream, scale: Tensor) -> Stream:
    return Stream(stream.residual + linear.linear_decode(x, weight), scale)


def norm_swiglu(stream: Stream, eps: float, weight: WeightMatrix) -> Tensor:
    return norm.swiglu(norm_linear(stream, eps, weight))


def norm_head(
    stream: Stream, eps: float, weight: WeightMatrix, addressable: int, out: Tensor | None = None
) -> Tensor:
    logits = linear.lm_head(_normed(stream, eps), weight, addressable)
    return logits if out is None else out.copy_(logits)


def _normed(stream: Stream, eps: float) -> Tensor:
    return norm.rms_norm(stream.residual, stream.scale, eps)


def linear_prefill_add(x: Tensor, weight: WeightMatrix, residual: Tensor) -> Tensor:
    return residual + linear.linear_prefill(x, weight)


def gdn_mix_step(
    stacked: Tensor,
    mixer: GdnMixer,
    history: Tensor,
    state: Tensor,
    slots: Tensor,
    targets: Tensor,
    settled: bool = False,
) -> Tensor:
    mixed, z, decay, beta = _parts(stacked, mixer)
    qkv = conv.causal_conv_step(mixed, mixer.conv, history, slots, targets)
    out = gdn.gdn_step(qkv, decay, beta, state, slots, targets, mixer.key_heads)
    return _gated(out, z, mixer)


def gdn_mix_verify(
    stacked: Tensor,
    mixer: GdnMixer,
    history: Tensor,
    state: Tensor,
    slots: Tensor,
    records: GdnRecords,
    settled: bool = False,
) -> Tensor:
    mixed, z, decay, beta = _parts(stacked, mixer)
    qkv = conv.causal_conv_verify(mixed, mixer.conv, history, slots, records)
    out = gdn.gdn_verify(qkv, decay, beta, state, slots, mixer.key_heads, records)
    return _gated(out, z, mixer)


def _parts(stacked: Tensor, mixer: GdnMixer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the convolution takes, the norm's gate, decay and beta."""
    heads = mixer.value_heads
    parts = [mixer.channels, heads * mixer.value_size, heads, heads]
    mixed, z, b, a = stacked.split_with_sizes(parts, dim=1)
    return mixed, z, *gdn.gdn_gates(a, b, mixer.decay_rate, mixer.dt_bias)


def _gated(out: Tensor, z: Tensor, mixer: GdnMixer) -> Tensor:
    gate = z.view(out.shape)
    return norm.gated_rms_norm(out, gate, mixer.norm_scale, mixer.eps).flatten(1)


def gdn_fold_layers(
    history: Tensor,
    state: Tensor,
    slots: Tensor,
    records: GdnRecords,
    counts: Tensor,
    targets: Tensor,
) -> None:
    for layer in range(history.shape[0]):
        own = GdnRecords(
            records.inputs[layer], records.keys[layer], records.updates[layer], records.keep[layer]
        )
        conv.causal_conv_fold(history[layer], slots, own, counts, targets)
        gdn.gdn_fold(state[layer], slots, own, counts, targets)


def attention_mix_decode(
    stacked: Tensor,
    mixer: AttentionMixer,
    cos: Tensor,
    sin: Tensor,
    cache: KvCache,
    rows: PagedRows,
    slots: Tensor,
    settled: bool = False,
) -> Tensor:
    heads, kv, size, count = mixer.heads, mixer.kv_heads, mixer.head_size, stacked.shape[0]
    q_gate, k, v = stacked.split_with_sizes([heads * 2 * size, kv * size, kv * size], dim=1)
    q, gate = q_gate.view(count, heads, 2 * size).split_with_sizes([size, size], dim=2)
    queries = kv_store.qk_norm_rope_store(
        q,
        k.view(count, kv, size),
        v.view(count, kv, size),
        mixer.q_scale,
        mixer.k_scale,
        mixer.eps,
        cos,
        sin,
        cache,
        slots,
    )
    attended = attention.paged_decode_attention(queries, cache, rows, size**-0.5)
    return norm.sigmoid_gate(attended, gate).reshape(count, heads * size)
