"""The torch reference of every op: the oracle that kernels are tested against, and the CPU backend.

It computes in fp32 (weights are widened once, by ``prepare_linear``), or in fp64 when it is given
fp64 operands. Contracts are in :mod:`ninfer_core.ops.contracts`; each module notes only what is
particular to this implementation.
"""

from __future__ import annotations

from types import MappingProxyType

from ninfer_core.ops.backend import OpBackend
from ninfer_core.ops.reference import (
    acceptance,
    attention,
    conv,
    drafting,
    drawing,
    fused,
    gdn,
    gdn_chunk,
    hidden,
    kv_store,
    law,
    linear,
    logits,
    logprobs,
    norm,
    rounds,
    transfers,
    verifying,
)
from ninfer_core.ops.table import Ops

OPS = Ops(
    prepare_linear=linear.prepare_linear,
    embedding=linear.embedding,
    linear_decode=linear.linear_decode,
    linear_prefill=linear.linear_prefill,
    lm_head=linear.lm_head,
    prompt_logprobs=linear.prompt_logprobs,
    rms_norm=norm.rms_norm,
    add_rms_norm=norm.add_rms_norm,
    gated_rms_norm=norm.gated_rms_norm,
    swiglu=norm.swiglu,
    sigmoid_gate=norm.sigmoid_gate,
    rope_angles=kv_store.rope_angles,
    kv_slots=kv_store.kv_slots,
    place_rows=kv_store.place_rows,
    qk_norm_rope_store=kv_store.qk_norm_rope_store,
    paged_decode_attention=attention.paged_decode_attention,
    paged_prefill_attention=attention.paged_prefill_attention,
    block_attention=attention.block_attention,
    causal_conv_chunk=conv.causal_conv_chunk,
    causal_conv_step=conv.causal_conv_step,
    causal_conv_verify=conv.causal_conv_verify,
    causal_conv_fold=conv.causal_conv_fold,
    gdn_gates=gdn.gdn_gates,
    gdn_chunk=gdn_chunk.gdn_chunk,
    gdn_step=gdn.gdn_step,
    gdn_verify=gdn.gdn_verify,
    gdn_fold=gdn.gdn_fold,
    open_stream=fused.open_stream,
    norm_linear=fused.norm_linear,
    linear_add=fused.linear_add,
    norm_swiglu=fused.norm_swiglu,
    norm_head=fused.norm_head,
    linear_prefill_add=fused.linear_prefill_add,
    gdn_mix_step=fused.gdn_mix_step,
    gdn_mix_verify=fused.gdn_mix_verify,
    gdn_fold_layers=fused.gdn_fold_layers,
    attention_mix_decode=fused.attention_mix_decode,
    nonfinite_rows=logits.nonfinite_rows,
    process_logits=logits.process_logits,
    sampling_law=law.sampling_law,
    sample_tokens=law.sample_tokens,
    argmax_rows=drawing.argmax_rows,
    draw_rows=drawing.draw_rows,
    logprobs=logprobs.logprobs,
    accept_drafts=acceptance.accept_drafts,
    count_tokens=logits.count_tokens,
    embed_stream=hidden.embed_stream,
    hand_over=hidden.hand_over,
    draft_inputs=hidden.draft_inputs,
    block_conv=drafting.block_conv,
    draft_candidates=drafting.draft_candidates,
    draft_walk=drafting.draft_walk,
    begin_round=rounds.begin_round,
    publish_round=rounds.publish_round,
    resolve_rows=verifying.resolve_rows,
    settle_drafts=verifying.settle_drafts,
    keep_drafts=verifying.keep_drafts,
    resolve_folds=verifying.resolve_folds,
    gather_units=transfers.gather_units,
    scatter_units=transfers.scatter_units,
)
"""The reference as a table; a type checker holds every function against its contract here."""

BACKEND = OpBackend("reference", MappingProxyType(OPS.implementations()))
