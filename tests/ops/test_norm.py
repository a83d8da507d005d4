"""Norms and gates against fp64 formulas."""

from __future__ import annotations

import pytest
import torch

EPS = 1e-6


def normed(x, scale):
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * scale.double()


@pytest.mark.parametrize("shape", [(1, 64), (5, 320), (3, 4, 128), (2, 5120)])
def test_rms_norm(ops, operands, shape):
    x, scale = operands.normal(*shape) * 3, operands.normal(shape[-1])
    result = ops.rms_norm(x, scale, EPS)
    torch.testing.assert_close(result.double(), normed(x, scale), rtol=2e-6, atol=1e-6)


def test_rms_norm_of_tiny_rows_is_ruled_by_eps(ops):
    x = torch.full((1, 64), 1e-4)
    expected = 1e-4 / (1e-8 + EPS) ** 0.5
    torch.testing.assert_close(ops.rms_norm(x, torch.ones(64), EPS), torch.full_like(x, expected))


def test_rms_norm_of_bf16_rounds_once(ops, operands):
    x, scale = operands.normal(4, 256).bfloat16(), operands.normal(256)
    assert torch.equal(ops.rms_norm(x, scale, EPS), ops.rms_norm(x.float(), scale, EPS).bfloat16())


def test_add_rms_norm_returns_the_sum(ops, operands):
    x, residual, scale = operands.normal(3, 64), operands.normal(3, 64), operands.normal(64)
    result, total = ops.add_rms_norm(x, residual, scale, EPS)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(result.double(), normed(total, scale), rtol=2e-6, atol=1e-6)


def test_gated_rms_norm_applies_silu_after_the_norm(ops, operands):
    x, scale = operands.normal(3, 6, 128), operands.normal(128)
    fused = operands.normal(3, 1000)
    gate = fused[:, 100 : 100 + 6 * 128].view(3, 6, 128)
    result = ops.gated_rms_norm(x, gate, scale, EPS)
    wide = gate.double()
    expected = normed(x, scale) * wide / (1 + (-wide).exp())
    torch.testing.assert_close(result.double(), expected, rtol=4e-6, atol=1e-6)
    assert torch.equal(fused[:, 100 : 100 + 6 * 128].view(3, 6, 128), gate)


@pytest.mark.parametrize("width", [64, 96, 1088])
def test_swiglu_gates_the_second_half_by_the_first(ops, operands, width):
    both = operands.normal(5, 2 * width)
    kept = both.clone()
    gate, up = both.double().chunk(2, dim=-1)
    expected = gate / (1 + (-gate).exp()) * up
    torch.testing.assert_close(ops.swiglu(both).double(), expected, rtol=4e-6, atol=1e-6)
    assert torch.equal(both, kept)


def test_sigmoid_gate(ops, operands):
    x, fused = operands.normal(3, 4, 64), operands.normal(3, 4, 128)
    gate = fused[..., 64:]
    expected = x.double() / (1 + (-gate.double()).exp())
    torch.testing.assert_close(ops.sigmoid_gate(x, gate).double(), expected, rtol=4e-6, atol=1e-6)
