"""The reference ops on quantised weights: products and rows of what the codes stand for."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.errors import OpError

ROWS, COLUMNS = 6, 130


def fp8(operands) -> tuple[WeightMatrix, torch.Tensor]:
    """A weight of random codes, and its values in fp64."""
    codes = operands.integers(256, ROWS, COLUMNS).to(torch.uint8)
    codes[codes & 0x7F == 0x7F] = 0x38
    codes = codes.view(torch.float8_e4m3fn)
    scales = operands.normal(ROWS).abs().to(torch.bfloat16)
    planes = {"codes": codes, "scales": scales}
    values = codes.double() * scales.double()[:, None]
    return WeightMatrix("fp8_e4m3fn_row_bf16", ROWS, COLUMNS, planes), values


def q4(operands) -> tuple[WeightMatrix, torch.Tensor]:
    signed = operands.integers(16, ROWS, 256) - 8
    signed[:, COLUMNS:] = 0
    low, high = signed[:, 0::2] & 15, signed[:, 1::2] & 15
    scales = operands.normal(ROWS, 4).abs().to(torch.float16)
    planes = {"codes": (low + 16 * high).to(torch.uint8), "scales": scales}
    values = signed.double() * scales.double().repeat_interleave(64, dim=1)
    return WeightMatrix("q4_g64_fp16", ROWS, COLUMNS, planes), values[:, :COLUMNS]


@pytest.mark.parametrize("make", [fp8, q4])
@pytest.mark.parametrize("count", [1, 3, 9])
def test_products_equal_those_of_the_decoded_weight(ops, operands, make, count):
    weight, values = make(operands)
    prepared = ops.prepare_linear(weight)
    wide = ops.prepare_linear(WeightMatrix("fp32", ROWS, COLUMNS, {"weight": values.float()}))
    assert torch.equal(values.float().double(), values)
    x = operands.normal(count, COLUMNS)
    for product in (ops.linear_decode, ops.linear_prefill):
        assert torch.equal(product(x, prepared), product(x, wide))
    exact = x.double() @ values.T
    error = (ops.linear_decode(x, prepared).double() - exact).abs()
    assert (error <= 1e-5 * (x.double().abs() @ values.abs().T)).all()


@pytest.mark.parametrize("make", [fp8, q4])
def test_embedding_reads_stored_and_prepared_tables(ops, operands, make):
    table, values = make(operands)
    ids = torch.tensor([5, 0, 5, 2], dtype=torch.int32)
    for form in (table, ops.prepare_linear(table)):
        rows = ops.embedding(ids, form)
        assert rows.is_contiguous()
        assert torch.equal(rows, values.float()[ids.long()])


@pytest.mark.parametrize("make", [fp8, q4])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda planes: planes.pop("scales"), "plane 'scales' of a .* weight is missing"),
        (lambda planes: planes.update(codes=planes["codes"][1:]), "plane 'codes' .* it must be"),
        (
            lambda planes: planes.update(scales=planes["scales"].float()),
            r"plane 'scales' .* is float32\[",
        ),
        (lambda planes: planes.update(codes=planes["codes"].to("meta")), "not on meta"),
    ],
)
def test_wrong_planes_are_refused(ops, operands, make, spoil, message):
    weight, _ = make(operands)
    planes = dict(weight.planes)
    spoil(planes)
    spoilt = WeightMatrix(weight.format, ROWS, COLUMNS, planes)
    with pytest.raises(OpError, match=message):
        ops.prepare_linear(spoilt)
    with pytest.raises(OpError, match=message):
        ops.embedding(torch.tensor([0], dtype=torch.int32), spoilt)


def test_another_format_names_those_that_are_read(ops):
    with pytest.raises(OpError, match="'q5_g64_fp16'") as caught:
        ops.prepare_linear(WeightMatrix("q5_g64_fp16", ROWS, COLUMNS, {}))
    assert "fp8_e4m3fn_row_bf16" in str(caught.value.hint)
    assert "q4_g64_fp16" in str(caught.value.hint)
