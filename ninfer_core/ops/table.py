"""The frozen table of chosen ops that model code calls: ``ops.rms_norm(x, scale, eps)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from ninfer_core.ops.contracts import (
    attention,
    drafting,
    fused,
    gdn,
    hidden,
    linear,
    norm,
    rounds,
    sampling,
    transfers,
    verifying,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """One callable per op contract, chosen once at start by
    :func:`ninfer_core.ops.select.select_ops`."""

    prepare_linear: linear.PrepareLinear
    embedding: linear.Embedding
    linear_decode: linear.LinearDecode
    linear_prefill: linear.LinearPrefill
    lm_head: linear.LmHead
    prompt_logprobs: linear.PromptLogprobs

    rms_norm: norm.RmsNorm
    add_rms_norm: norm.AddRmsNorm
    gated_rms_norm: norm.GatedRmsNorm
    swiglu: norm.SwiGlu
    sigmoid_gate: norm.SigmoidGate

    rope_angles: attention.RopeAngles
    kv_slots: attention.KvSlots
    place_rows: attention.PlaceRows
    qk_norm_rope_store: attention.QkNormRopeStore
    paged_decode_attention: attention.PagedDecodeAttention
    paged_prefill_attention: attention.PagedPrefillAttention
    block_attention: attention.BlockAttention

    causal_conv_chunk: gdn.CausalConvChunk
    causal_conv_step: gdn.CausalConvStep
    causal_conv_verify: gdn.CausalConvVerify
    causal_conv_fold: gdn.CausalConvFold
    gdn_gates: gdn.GdnGates
    gdn_chunk: gdn.GdnChunk
    gdn_step: gdn.GdnStep
    gdn_verify: gdn.GdnVerify
    gdn_fold: gdn.GdnFold

    open_stream: fused.OpenStream
    norm_linear: fused.NormLinear
    linear_add: fused.LinearAdd
    norm_swiglu: fused.NormSwiGlu
    norm_head: fused.NormHead
    linear_prefill_add: fused.LinearPrefillAdd
    gdn_mix_step: fused.GdnMixStep
    gdn_mix_verify: fused.GdnMixVerify
    gdn_fold_layers: fused.GdnFoldLayers
    attention_mix_decode: fused.AttentionMixDecode

    nonfinite_rows: sampling.NonfiniteRows
    process_logits: sampling.ProcessLogits
    sampling_law: sampling.SamplingLaw
    sample_tokens: sampling.SampleTokens
    argmax_rows: sampling.ArgmaxRows
    draw_rows: sampling.DrawRows
    logprobs: sampling.Logprobs
    accept_drafts: sampling.AcceptDrafts
    count_tokens: sampling.CountTokens

    embed_stream: hidden.EmbedStream
    hand_over: hidden.HandOver
    draft_inputs: hidden.DraftInputs

    block_conv: drafting.BlockConv
    draft_candidates: drafting.DraftCandidates
    draft_walk: drafting.DraftWalk

    begin_round: rounds.BeginRound
    publish_round: rounds.PublishRound
    resolve_rows: verifying.ResolveRows
    settle_drafts: verifying.SettleDrafts
    keep_drafts: verifying.KeepDrafts
    resolve_folds: verifying.ResolveFolds

    gather_units: transfers.GatherUnits
    scatter_units: transfers.ScatterUnits

    def implementations(self) -> dict[str, Callable[..., Any]]:
        """The table by op name."""
        return {name: getattr(self, name) for name in OP_NAMES}


OP_NAMES: tuple[str, ...] = tuple(field.name for field in fields(Ops))
