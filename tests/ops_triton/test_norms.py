"""Norms and gates against float64."""

from __future__ import annotations

import math

import pytest
import torch
from harness import GuardedAllocations, assert_close_to_oracle, guarded
from matrices import EPS, rms_normed, silu

from ninfer_core.ops.errors import OpError
from ninfer_ops_triton import norm

DTYPES = [torch.bfloat16, torch.float32]
WIDTHS = [1, 15, 16, 17, 64, 1000, 1024, 1025, 5120]
ULPS = 8.0


@pytest.fixture(params=DTYPES, ids=["bf16", "fp32"])
def dtype(request):
    return request.param


def close(result, oracle, dtype):
    """A few roundings of fp32 stand behind a result; one more where it is bf16."""
    assert result.dtype == dtype
    loose = oracle.float() * (1 + 2e-7) if dtype == torch.float32 else oracle.to(dtype)
    assert_close_to_oracle(result, oracle, loose, ulps=ULPS)


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(operands, dtype, width):
    x = guarded(operands.normal(3, width, dtype=dtype, scale=3.0)).tensor
    scale = guarded(operands.normal(width)).tensor
    with GuardedAllocations():
        result = norm.rms_norm(x, scale, EPS)
    close(result, rms_normed(x, scale), dtype)


def test_rms_norm_of_many_dimensions_and_strides(operands):
    x = operands.normal(2, 3, 40).transpose(0, 1)
    scale = operands.normal(40)
    close(norm.rms_norm(x, scale, EPS), rms_normed(x, scale), torch.float32)


def test_rms_norm_of_the_widest_row(operands):
    x, scale = operands.normal(1, norm.WIDEST), operands.normal(norm.WIDEST)
    close(norm.rms_norm(x, scale, EPS), rms_normed(x, scale), torch.float32)
    with pytest.raises(OpError, match="32769"):
        norm.rms_norm(operands.normal(1, 32_769), operands.normal(32_769), EPS)


def test_rms_norm_of_tiny_rows_is_ruled_by_eps(operands):
    x = torch.full((1, 64), 1e-4, device=operands.device)
    result = norm.rms_norm(x, torch.ones(64, device=operands.device), EPS)
    expected = torch.full((1, 64), 1e-4 / math.sqrt(1e-8 + 1e-6), device=operands.device)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("width", [17, 320])
def test_add_rms_norm(operands, dtype, width):
    x, residual = (operands.normal(3, width, dtype=dtype) for _ in range(2))
    scale = operands.normal(width)
    with GuardedAllocations():
        result, total = norm.add_rms_norm(x, residual, scale, EPS)
    assert torch.equal(total, residual + x)
    close(result, rms_normed(total, scale), dtype)


@pytest.mark.parametrize(("heads", "width"), [(1, 16), (5, 20), (17, 128), (3, 128)])
def test_gated_rms_norm(operands, dtype, heads, width):
    x, scale = operands.normal(2, heads, width), operands.normal(width)
    fused = operands.normal(2, heads * width + 9, dtype=dtype, scale=3.0)
    gate = fused[:, 4 : 4 + heads * width].view(2, heads, width)
    with GuardedAllocations():
        result = norm.gated_rms_norm(x, gate, scale, EPS)
    close(result, rms_normed(x, scale) * silu(gate.cpu().double()), dtype)


@pytest.mark.parametrize("width", [1, 64, 1023, 1025])
def test_swiglu(operands, dtype, width):
    both = guarded(operands.normal(3, 2 * width, dtype=dtype, scale=3.0)).tensor
    with GuardedAllocations():
        result = norm.swiglu(both)
    gate, up = both.cpu().double().chunk(2, dim=-1)
    close(result, silu(gate) * up, dtype)
    strided = torch.cat([both, both], dim=1)[:, : 2 * width]
    assert torch.equal(norm.swiglu(strided), result)


@pytest.mark.parametrize("shape", [(3, 65), (2, 5, 24), (2, 3, 4, 16)])
def test_sigmoid_gate(operands, dtype, shape):
    fused = operands.normal(*shape[:-1], 2 * shape[-1], dtype=dtype, scale=3.0)
    x, gate = fused.split(shape[-1], dim=-1)
    with GuardedAllocations():
        result = norm.sigmoid_gate(x, gate)
    close(result, x.cpu().double() / (1 + (-gate.cpu().double()).exp()), dtype)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_row_breaks_no_other_and_rows_stand_alone(operands, bad):
    x, other = operands.normal(4, 100), operands.normal(4, 100)
    scale = operands.normal(100)
    x[2, 50] = bad
    kept = [0, 1, 3]
    for op in (
        lambda rows: norm.rms_norm(x[rows], scale, EPS),
        lambda rows: norm.add_rms_norm(x[rows], other[rows], scale, EPS)[0],
        lambda rows: norm.swiglu(x[rows]),
        lambda rows: norm.sigmoid_gate(other[rows], x[rows]),
        lambda rows: norm.gated_rms_norm(x[rows, None], other[rows, None], scale, EPS),
    ):
        whole = op([0, 1, 2, 3])
        assert whole[kept].isfinite().all()
        for row in kept:
            assert torch.equal(op([row])[0], whole[row])
    assert not norm.rms_norm(x, scale, EPS)[2].isfinite().all()


def test_extreme_gates_do_not_overflow(operands):
    gate = torch.tensor([[-200.0, -90.0, 0.0, 90.0, 200.0]], device=operands.device)
    up = torch.full_like(gate, 2.0)
    assert norm.swiglu(torch.cat([gate, up], 1)).tolist() == [[0.0, 0.0, 0.0, 180.0, 400.0]]
    assert norm.sigmoid_gate(up, gate).tolist() == [[0.0, 0.0, 1.0, 2.0, 2.0]]


def test_no_rows_give_no_rows(operands):
    x = operands.normal(0, 64)
    assert norm.rms_norm(x, operands.normal(64), EPS).shape == (0, 64)
    assert norm.swiglu(x).shape == (0, 32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: norm.rms_norm(x, x[0, :32], EPS), r"float32\[32\].*float32\[64\]"),
        (lambda x: norm.rms_norm(x, x[0].double(), EPS), r"float64\[64\]"),
        (lambda x: norm.add_rms_norm(x, x[:1], x[0], EPS), r"residual.*\[1, 64\]"),
        (lambda x: norm.swiglu(x[:, :63]), r"\[2, 63\].*2 I"),
        (lambda x: norm.sigmoid_gate(x, x.bfloat16()), "gate is torch.bfloat16"),
        (lambda x: norm.gated_rms_norm(x, x, x[0], EPS), r"\[T, heads, width\]"),
    ],
)
def test_operands_that_do_not_fit_are_refused(operands, call, message):
    with pytest.raises(OpError, match=message):
        call(operands.normal(2, 64))
