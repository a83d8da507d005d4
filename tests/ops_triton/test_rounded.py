"""Prompt products over activations rounded to E4M3: codes, values, and which calls go that way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from harness import GuardedAllocations, assert_close_to_oracle
from matrices import stored_matrix
from torch import Tensor

from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_ops_triton import prefill_linear, rounded, weights

MANY = rounded.ROWS + 1


def permitted(operands, kind: str, rows: int, columns: int) -> tuple[WeightMatrix, Tensor]:
    """A prepared weight whose consumers permit eight bits, and its float64 values."""
    stored, values = stored_matrix(operands, kind, rows, columns)
    return weights.prepare_linear(replace(stored, allow_a8=True)), values


def rounded_rows(x: Tensor) -> Tensor:
    """x as torch's own cast to E4M3 on the CPU rounds it, float64."""
    wide = x.cpu().float()
    amax = wide.abs().amax(1, keepdim=True)
    # Quotients of tensors: with a plain number torch may multiply by a reciprocal instead.
    top = torch.full_like(amax, 448)
    codes = (wide * (top / amax)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return (codes.double() * (amax / top).double()).to(x.device)


def activations(operands, count: int, columns: int) -> Tensor:
    """Rows of very different sizes, with an outlier in each."""
    x = (
        operands.normal(count, columns)
        * torch.logspace(-6, 6, count, device=operands.device)[:, None]
    )
    x[:, columns // 3] *= 30
    return x.bfloat16()


class TestCodes:
    @pytest.mark.parametrize("columns", [1, 64, 300, 2048, 2049, 4112])
    def test_equal_to_torchs_cast(self, operands, columns):
        x = activations(operands, 37, columns)
        with GuardedAllocations():
            codes, scales = rounded.quantised_rows(x)
        assert (codes.dtype, scales.dtype) == (torch.float8_e4m3fn, torch.float32)
        assert (codes.shape, scales.shape) == (x.shape, (37, 1))
        assert torch.equal(codes.double() * scales.double(), rounded_rows(x))

    def test_by_hand(self, operands):
        """448 makes the scale 1: codes are the numbers' own, ties to even, -0 with its sign."""
        numbers = [448.0, -448.0, 1.0, 17.0, 19.0, 0.015625, 2**-9, 2**-10, 3 * 2**-10, -0.0, 240.0]
        expected = [0x7E, 0xFE, 0x38, 0x58, 0x5A, 0x08, 0x01, 0x00, 0x02, 0x80, 0x77]
        x = torch.tensor([numbers], device=operands.device).bfloat16()
        codes, scales = rounded.quantised_rows(x)
        assert scales.item() == 1.0
        assert codes.view(torch.uint8)[0].tolist() == expected

    def test_a_row_that_is_broken_breaks_no_other(self, operands):
        x = operands.normal(6, 96, dtype=torch.bfloat16)
        sound = rounded.quantised_rows(x)
        x[1, 5], x[2, 95], x[3, 0] = float("nan"), float("inf"), float("-inf")
        x[4] = 0.0
        codes, scales = rounded.quantised_rows(x)
        assert scales[1:4].isnan().all()
        assert scales[4] == 0.0
        assert not codes[1:5].view(torch.uint8).any()
        for row in (0, 5):
            assert torch.equal(codes[row].view(torch.uint8), sound[0][row].view(torch.uint8))
            assert torch.equal(scales[row], sound[1][row])

    def test_the_largest_and_the_smallest_numbers(self, operands):
        """Below 2^-119 a row counts as zeros."""
        tops = [3.3895e38, 2.0**-118, 2.0**-119, 2.0**-120, 2.0**-133]
        x = torch.tensor(tops, device=operands.device)[:, None].repeat(1, 40).bfloat16()
        x[:, 1] = 0.0
        x[:, 2] /= -2
        codes, scales = rounded.quantised_rows(x)
        rows = codes.view(torch.uint8)[:, :4].tolist()
        assert rows == [[0x7E, 0, 0xF6, 0x7E]] * 3 + [[0, 0, 0, 0], [0, 0, 0, 0]]
        assert (scales[:3] > 0).all()
        assert not scales[3:].any()

    def test_rows_with_gaps_between_them(self, operands):
        wide = operands.normal(5, 128, dtype=torch.bfloat16)
        codes, scales = rounded.quantised_rows(wide[:, :48])
        assert torch.equal(codes.double() * scales.double(), rounded_rows(wide[:, :48]))


class TestProducts:
    @pytest.mark.parametrize(("rows", "columns"), [(96, 208), (16, 1040)])
    def test_close_to_the_exact_product_of_rounded_rows(self, operands, rows, columns):
        weight, dense = permitted(operands, "fp8", rows, columns)
        x = activations(operands, MANY, columns)
        exact = rounded_rows(x).cpu() @ dense.T
        result = prefill_linear.linear_prefill(x, weight)
        assert result.dtype == torch.bfloat16
        assert_close_to_oracle(result, exact)

    def test_a_residual_is_added_to_the_rounded_product(self, operands):
        weight, dense = permitted(operands, "fp8", 96, 208)
        x, residual = (operands.normal(MANY, n, dtype=torch.bfloat16) for n in (208, 96))
        before = residual.clone()
        exact = rounded_rows(x).cpu() @ dense.T
        result = prefill_linear.linear_prefill_add(x, weight, residual)
        assert torch.equal(residual, before)
        assert_close_to_oracle(
            result, exact + residual.cpu().double(), exact.bfloat16() + residual.cpu()
        )

    def test_rows_do_not_depend_on_each_other(self, operands):
        weight, _ = permitted(operands, "fp8", 48, 64)
        x = operands.normal(MANY, 64, dtype=torch.bfloat16)
        alone = prefill_linear.linear_prefill(x, weight)
        x[::3] = operands.normal(len(x[::3]), 64, dtype=torch.bfloat16, scale=1e3)
        x[3, 1], x[6, 2], x[9] = float("nan"), float("inf"), 0.0
        together = prefill_linear.linear_prefill(x, weight)
        kept = torch.arange(MANY, device=x.device) % 3 != 0
        assert torch.equal(together[kept], alone[kept])
        assert together[3].isnan().all()
        assert together[6].isnan().all()
        assert not together[9].any()


class TestRoute:
    """Results tell which way a call went: rounding a row moves its products by 2 % and more."""

    @staticmethod
    def results(operands, weight: WeightMatrix, dense: Tensor, count: int) -> tuple[bool, bool]:
        """Whether the result is that of rounded rows, and that of rows as they are."""
        x = operands.normal(count, weight.columns, dtype=torch.bfloat16)
        result = prefill_linear.linear_prefill(x, weight).cpu().double()
        kept = x.cpu().double() @ dense.bfloat16().double().T
        narrow = rounded_rows(x).cpu() @ dense.T
        near = [float((result - y).norm() / y.norm()) < 6e-3 for y in (narrow, kept)]
        assert float((narrow - kept).norm() / kept.norm()) > 1.5e-2
        return near[0], near[1]

    @pytest.mark.parametrize(("count", "goes"), [(1, False), (MANY - 1, False), (MANY, True)])
    def test_by_the_number_of_rows(self, operands, count, goes):
        weight, dense = permitted(operands, "fp8", 32, 256)
        assert weight.allow_a8
        assert self.results(operands, weight, dense, count) == (goes, not goes)

    def test_not_without_permission(self, operands):
        stored, dense = stored_matrix(operands, "fp8", 32, 256)
        weight = weights.prepare_linear(stored)
        assert weight is stored
        assert self.results(operands, weight, dense, MANY) == (False, True)

    @pytest.mark.parametrize(
        ("kind", "rows", "columns"),
        [("bf16", 32, 256), ("q4", 32, 256), ("fp8", 40, 256), ("fp8", 32, 264)],
    )
    def test_not_of_other_formats_and_sizes(self, operands, kind, rows, columns):
        weight, dense = permitted(operands, kind, rows, columns)
        assert not weight.allow_a8
        assert self.results(operands, weight, dense, MANY) == (False, True)

    @pytest.mark.parametrize(
        ("capability", "goes"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True)]
    )
    def test_by_the_device(self, operands, monkeypatch, capability, goes):
        monkeypatch.setattr(rounded, "capability", lambda: capability)
        weight, _ = permitted(operands, "fp8", 32, 64)
        assert weight.allow_a8 is goes
        assert (rounded.WIDE_SCALES in weight.planes) is goes

    def test_not_of_planes_at_odd_addresses(self, operands):
        stored, _ = stored_matrix(operands, "fp8", 32, 64)
        room = torch.empty(32 * 64 + 8, dtype=torch.uint8, device=operands.device)
        codes = room[8:].view(32, 64).copy_(stored.planes["codes"].view(torch.uint8))
        planes = {**stored.planes, "codes": codes.view(torch.float8_e4m3fn)}
        moved = WeightMatrix(stored.format, 32, 64, planes, allow_a8=True)
        assert not weights.prepare_linear(moved).allow_a8

    def test_a_prepared_weight_is_returned_as_it_is(self, operands):
        weight, _ = permitted(operands, "fp8", 32, 64)
        assert weights.prepare_linear(weight) is weight
        scales = weight.planes[rounded.WIDE_SCALES]
        assert scales.dtype == torch.float32
        assert torch.equal(scales, weight.planes["scales"].float())

    def test_logits_of_prompts_are_never_rounded(self, operands):
        weight, dense = permitted(operands, "fp8", 96, 64)
        hidden = operands.normal(MANY, 64, dtype=torch.bfloat16)
        scored = prefill_linear.prompt_logprobs(hidden, weight, 96, operands.integers(96, MANY), 1)
        law = (hidden.cpu().double() @ dense.bfloat16().double().T).log_softmax(-1)
        best = law.max(-1).values
        torch.testing.assert_close(scored.top_values[:, 0].cpu().double(), best, rtol=0, atol=1e-4)


REAL = [
    (16480, 5120), (14336, 5120), (34816, 5120), (5120, 6144), (5120, 17408),
    (8224, 1024), (5120, 1024), (7168, 1024), (1024, 2048), (1024, 3584),
]  # fmt: skip
"""Rows and columns of the matrices of 27B and 0.8B."""


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns"), REAL)
def test_published_sizes(operands, rows, columns):
    weight, _ = permitted(operands, "fp8", rows, columns)
    assert weight.allow_a8
    # On the device: products in float64 are those of other units and of another library.
    dense = weight.planes["codes"].double() * weight.planes["scales"].double()[:, None]
    for count in (129, 1000, 1024):
        x = activations(operands, count, columns)
        result = prefill_linear.linear_prefill(x, weight)
        assert_close_to_oracle(result, rounded_rows(x) @ dense.T)
        x[::2] = 3.0
        x[1, 0] = float("nan")
        again = prefill_linear.linear_prefill(x, weight)
        assert again[1].isnan().all()
        assert torch.equal(again[3::2], result[3::2])
