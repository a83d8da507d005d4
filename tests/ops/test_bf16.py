"""bf16 operands: widened, computed in fp32, rounded once."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.ops.contracts.values import GdnRecords, KvCache


def halves(cache):
    """A cache rounded to bf16, and the same values in fp32."""
    narrow = KvCache("bf16", cache.keys.bfloat16(), cache.values.bfloat16())
    return narrow, KvCache("fp32", narrow.keys.float(), narrow.values.float())


@pytest.mark.parametrize("pages", [[0, 1, 2], [2, 0, 1]], ids=["run", "scattered"])
def test_attention(ops, operands, paged, pages):
    narrow, wide = halves(operands.cache(3, 2, 64))
    q = operands.normal(1, 4, 64).bfloat16()
    rows = paged([pages], starts=[140], live=[1], width=1)
    for attend in (ops.paged_decode_attention, ops.paged_prefill_attention):
        result = attend(q, narrow, rows, 0.125)
        assert result.dtype == torch.bfloat16
        assert torch.equal(result, attend(q.float(), wide, rows, 0.125).bfloat16())


def test_store(ops, operands):
    narrow, wide = halves(operands.cache(2, 2, 64))
    q, k, v = (operands.normal(3, heads, 64).bfloat16() for heads in (4, 2, 2))
    scale, angles, slots = operands.normal(64), operands.normal(3, 8), torch.tensor([5, -1, 64])
    rest = (scale, scale, 1e-6, angles.cos(), angles.sin())
    result = ops.qk_norm_rope_store(q, k, v, *rest, narrow, slots)
    expected = ops.qk_norm_rope_store(q.float(), k.float(), v.float(), *rest, wide, slots)
    assert torch.equal(result, expected.bfloat16())
    assert torch.equal(narrow.keys, wide.keys.bfloat16())
    assert torch.equal(narrow.values, wide.values.bfloat16())


def test_convolution(ops, operands):
    x, history = operands.normal(5, 64).bfloat16(), operands.normal(2, 3, 64).bfloat16()
    weight, slot, wide = operands.normal(4, 64), torch.tensor([1]), history.float()
    result = ops.causal_conv_chunk(x, weight, history, slot)
    assert torch.equal(result, ops.causal_conv_chunk(x.float(), weight, wide, slot).bfloat16())
    assert torch.equal(history.float(), wide)


def test_delta_rule(ops, operands, records):
    nk, nv, dk, dv = 1, 2, 32, 16
    qkv, state = (
        operands.normal(2, 2 * nk * dk + nv * dv).bfloat16(),
        operands.normal(3, nv, dk, dv),
    )
    decay, beta = (gate.float() for gate in operands.gates(2, nv))
    slots, kept = torch.tensor([2, 0]), state.clone()
    recorded: GdnRecords = records(3, 1, nk=nk, nv=nv, dk=dk, dv=dv)
    result = ops.gdn_verify(qkv, decay, beta, state, slots, nk, recorded)
    assert result.dtype == torch.float32
    assert torch.equal(result, ops.gdn_step(qkv.float(), decay, beta, kept, slots, slots, nk))
    ops.gdn_fold(state, slots, recorded, torch.ones(2, dtype=torch.int32))
    assert torch.equal(state, kept)
