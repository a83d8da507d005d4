"""Products of the decode route against float64, alone and fused, in every weight format."""

from __future__ import annotations

import math

import pytest
import torch
from harness import GuardedAllocations, assert_close_to_oracle, guarded
from matrices import EPS, FORMATS, cuts, matrix, rms_normed, silu, stored_matrix

from ninfer_core.ops.contracts.values import Stream, WeightMatrix
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton import cuts as cutting
from ninfer_ops_triton import heads, linear, tiles
from ninfer_ops_triton.cuts import Cut
from ninfer_ops_triton.streams import open_stream
from ninfer_ops_triton.weights import prepare_linear

COUNTS = [1, 8, 9, 16, 17, 33]
SHAPES = [(40, 256), (33, 400), (1, 64), (17, 63)]


@pytest.fixture(params=FORMATS)
def kind(request):
    return request.param


@pytest.fixture(
    params=[("bf16", "one"), ("bf16", "groups"), ("bf16", "parts"), ("bf16", "broad"),
            ("fp8", "parts"), ("fp8", "broad"), ("q4", "one"), ("q4", "parts")],
    ids="-".join,
)  # fmt: skip
def cut(request, monkeypatch):
    """A format whose products are cut in a given way."""
    kind, name = request.param
    monkeypatch.setattr(tiles, "choose", lambda *shape: cuts(kind)[name])
    return kind


def added_rows(x, weight, residual):
    """The rows of the stream that ``linear_add`` returns."""
    ones = torch.ones(weight.rows, device=x.device)
    return linear.linear_add(x, weight, Stream(residual, ones), ones).residual


def product_in_float32(x, weight, device):
    """torch's own product of bf16 operands with an fp32 result; tensor cores add in their way."""
    if device.type == "cuda":
        return torch.mm(x.to(device), weight.to(device).T, out_dtype=torch.float32).cpu()
    return x.cpu().float() @ weight.cpu().float().T


def fused_ops(operands, kind, rows, columns, count):
    """Name, call, float64 result and torch's own result of the ops on one set of operands."""
    weight, dense = matrix(operands, kind, rows, columns)
    gate_up, both = matrix(operands, kind, 2 * rows, columns)
    x = operands.normal(count, columns, dtype=torch.bfloat16, scale=2.0)
    residual = operands.normal(count, rows, dtype=torch.bfloat16)
    scale = operands.normal(columns)
    wide, normed = x.cpu().double(), rms_normed(x, scale)
    plain, stacked = wide @ dense.T, normed @ both.T
    gated = silu(stacked[:, :rows]) * stacked[:, rows:]
    narrow, added = normed.bfloat16(), residual.cpu()
    mm = wide.bfloat16() @ dense.bfloat16().T
    pair = narrow @ both.bfloat16().T
    swiglu = (silu(pair[:, :rows].double()) * pair[:, rows:].double()).bfloat16()
    return [
        ("linear", lambda: linear.linear_decode(x, weight), plain, mm),
        ("norm", lambda: linear.norm_linear(open_stream(x, scale), EPS, weight), normed @ dense.T,
         narrow @ dense.bfloat16().T),
        ("add", lambda: added_rows(x, weight, residual), plain + added.double(), mm + added),
        ("swiglu", lambda: linear.norm_swiglu(open_stream(x, scale), EPS, gate_up), gated, swiglu),
    ]  # fmt: skip


def hold(name, call, oracle, baseline):
    with GuardedAllocations():
        result = call()
    assert result.dtype == torch.bfloat16
    assert_close_to_oracle(result, oracle, baseline)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_shapes(operands, cut, rows, columns):
    for case in fused_ops(operands, cut, rows, columns, 3):
        hold(*case)


@pytest.mark.parametrize("count", COUNTS)
def test_row_counts(operands, count):
    for case in fused_ops(operands, "bf16", max(16, 96 // count), 192, count):
        hold(*case)


def test_the_rule_chooses_for_every_format(operands, kind):
    for case in fused_ops(operands, kind, 20, 1100, 2):
        hold(*case)


def test_bits_of_a_row_do_not_depend_on_the_others(operands, cut):
    rows, columns, count = 16, 200, 36
    weight, _ = matrix(operands, cut, rows, columns)
    x = operands.normal(count, columns, dtype=torch.bfloat16)
    scale = operands.normal(columns)
    for op in (
        lambda c: linear.linear_decode(x[c], weight),
        lambda c: linear.norm_swiglu(open_stream(x[c], scale), EPS, weight),
        lambda c: heads.norm_head(open_stream(x[c], scale), EPS, weight, rows - 1),
    ):
        whole = op(list(range(count)))
        for company in ([35], [5, 35, 1], list(range(35, 23, -1))):
            assert torch.equal(op(company), whole[company]), company


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_row_breaks_no_other(operands, cut, bad):
    weight, dense = matrix(operands, cut, 20, 200)
    x = operands.normal(4, 200, dtype=torch.bfloat16)
    scale = operands.normal(200)
    clean = [
        linear.linear_decode(x, weight),
        linear.norm_linear(open_stream(x, scale), EPS, weight),
    ]
    x[2, 77] = bad
    touched = dense[:, 77] != 0
    for before, after in zip(
        clean,
        [linear.linear_decode(x, weight), linear.norm_linear(open_stream(x, scale), EPS, weight)],
        strict=True,
    ):
        assert torch.equal(before[[0, 1, 3]], after[[0, 1, 3]])
        assert not after[2].cpu()[touched].isfinite().any()


def test_nothing_outside_the_operands_is_read(operands, cut):
    rows, columns = 18, 200
    weight, dense = matrix(operands, cut, rows, columns)
    planes = {name: guarded(plane) for name, plane in weight.planes.items()}
    fenced = WeightMatrix(weight.format, rows, columns, {n: g.tensor for n, g in planes.items()})
    x = operands.normal(3, columns, dtype=torch.bfloat16)
    fenced_x = guarded(x)
    scale = guarded(operands.normal(columns))
    result = linear.norm_linear(open_stream(fenced_x.tensor, scale.tensor), EPS, fenced)
    oracle = rms_normed(x, scale.tensor) @ dense.T
    baseline = rms_normed(x, scale.tensor).bfloat16() @ dense.bfloat16().T
    assert_close_to_oracle(result, oracle, baseline)


class TestStream:
    """A product that adds also leaves what the next norm needs."""

    def chain(self, x, weight, residual, scale, following):
        stream = linear.linear_add(x, weight, open_stream(residual, scale), scale)
        return stream, linear.norm_linear(stream, EPS, following)

    def test_the_next_product_is_that_of_the_normed_sum(self, operands, cut):
        rows, columns = 112, 200
        weight, _ = matrix(operands, cut, rows, columns)
        following, dense = matrix(operands, cut, 24, rows)
        x, residual = (operands.normal(5, width, dtype=torch.bfloat16) for width in (columns, rows))
        scale = operands.normal(rows)
        with GuardedAllocations():
            stream, result = self.chain(x, weight, residual, scale, following)
        total = stream.residual.cpu().double()
        assert torch.equal(
            stream.scaled.cpu(), (stream.residual.cpu().float() * scale.cpu()).bfloat16()
        )
        squares = stream.squares.cpu().double().sum(1)
        assert torch.allclose(squares, total.square().sum(1), rtol=1e-6)
        normed = rms_normed(stream.residual, scale)
        baseline = normed.bfloat16() @ dense.bfloat16().T
        assert_close_to_oracle(result, normed @ dense.T, baseline)

    def test_its_bits_do_not_depend_on_the_other_rows(self, operands, cut):
        rows, columns, count = 80, 136, 36
        weight, _ = matrix(operands, cut, rows, columns)
        following, _ = matrix(operands, cut, 24, rows)
        x, residual = (
            operands.normal(count, width, dtype=torch.bfloat16) for width in (columns, rows)
        )
        scale = operands.normal(rows)
        _, whole = self.chain(x, weight, residual, scale, following)
        for company in ([35], [5, 35, 1], list(range(35, 23, -1))):
            _, part = self.chain(x[company], weight, residual[company], scale, following)
            assert torch.equal(part, whole[company]), company

    @pytest.mark.parametrize("rows", [112, 70])
    def test_programs_of_more_rows_give_the_same_bits(self, operands, monkeypatch, rows):
        """Sums of squares stay those of as many rows as before."""
        columns, count = 200, 20
        monkeypatch.setattr(tiles, "choose", lambda *shape: cuts("bf16")["groups"])
        weight, _ = matrix(operands, "bf16", rows, columns)
        following, _ = matrix(operands, "bf16", 24, rows)
        x, residual = (
            operands.normal(count, width, dtype=torch.bfloat16) for width in (columns, rows)
        )
        scale = operands.normal(rows)
        made = []
        for size in (16, 32, 64):
            monkeypatch.setattr(cutting, "cut_for", lambda *_, size=size: Cut(size, 1, 4, 3))
            with GuardedAllocations():
                stream, result = self.chain(x, weight, residual, scale, following)
            assert stream.squares.shape == (count, -(-rows // 16))
            made.append((stream.residual, stream.scaled, stream.squares, result))
        for other in made[1:]:
            assert all(map(torch.equal, other, made[0]))

    def test_a_stream_of_another_backend_is_refused(self, device, operands):
        weight, _ = matrix(operands, "bf16", 8, 64)
        stream = Stream(operands.normal(1, 64, dtype=torch.bfloat16), torch.ones(64, device=device))
        with pytest.raises(OpError, match="not opened by this backend"):
            linear.norm_linear(stream, EPS, weight)


class TestHead:
    @pytest.mark.parametrize(("rows", "live"), [(40, 37), (40, 40), (48, 16)])
    def test_padding_rows_are_minus_infinity(self, operands, kind, rows, live):
        stored, dense = stored_matrix(operands, kind, rows, 256)
        hidden = operands.normal(3, 256, dtype=torch.bfloat16)
        scale = operands.normal(256)
        for plane in stored.planes.values():
            plane[live:] = torch.full_like(plane[live:].float(), 7.0).to(plane.dtype)
        weight = prepare_linear(stored)
        normed = rms_normed(hidden, scale)
        for result, wide in (
            (heads.lm_head(hidden, weight, live), hidden.cpu().double()),
            (heads.norm_head(open_stream(hidden, scale), EPS, weight, live), normed),
        ):
            assert result.dtype == torch.float32
            oracle = wide @ dense.T
            oracle[:, live:] = -torch.inf
            baseline = product_in_float32(wide.bfloat16(), dense.bfloat16(), hidden.device)
            baseline[:, live:] = -torch.inf
            assert_close_to_oracle(result, oracle, baseline, ulps=2.0**17)

    def test_lm_head_keeps_float32(self, operands):
        weight, dense = matrix(operands, "bf16", 64, 512)
        hidden = operands.normal(2, 512, dtype=torch.bfloat16)
        oracle = hidden.cpu().double() @ dense.T
        baseline = product_in_float32(hidden, dense.bfloat16(), hidden.device)
        assert_close_to_oracle(heads.lm_head(hidden, weight, 64), oracle, baseline, ulps=16)


class TestEmbedding:
    @pytest.mark.parametrize("columns", [64, 320, 1024, 1100])
    @pytest.mark.parametrize("make", [matrix, stored_matrix])
    def test_rows_are_exact(self, device, operands, kind, columns, make):
        table, dense = make(operands, kind, 50, columns)
        ids = torch.tensor([0, 49, 7, 7], dtype=torch.int32, device=device)
        with GuardedAllocations():
            result = linear.embedding(ids, table)
        assert torch.equal(result.cpu(), dense[ids.cpu().long()].bfloat16())


def test_odd_columns_of_four_bits(operands):
    for case in fused_ops(operands, "q4", 20, 77, 3):
        hold(*case)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 65, dtype=torch.bfloat16)}, r"bfloat16\[2, 65\].*\[T >= 1, 64\]"),
        ({"x": torch.zeros(2, 64)}, r"float32\[2, 64\]"),
        ({"x": torch.zeros(0, 64, dtype=torch.bfloat16)}, r"\[0, 64\]"),
        ({"residual": torch.zeros(3, 8, dtype=torch.bfloat16)}, r"residual.*\[3, 8\].*\[2, 8\]"),
        ({"format": "fp32"}, "prepare_linear"),
    ],
)
def test_operands_that_do_not_fit_are_refused(device, operands, change, message):
    weight, _ = matrix(operands, "bf16", 8, 64)
    weight = WeightMatrix(change.get("format", "bf16"), 8, 64, weight.planes)
    x = change.get("x", torch.zeros(2, 64, dtype=torch.bfloat16)).to(device)
    residual = change.get("residual", torch.zeros(2, 8, dtype=torch.bfloat16)).to(device)
    with pytest.raises(OpError, match=message):
        added_rows(x, weight, residual)


@pytest.mark.parametrize("live", [0, 9])
def test_addressable_rows_must_be_there(operands, live):
    weight, _ = matrix(operands, "bf16", 8, 64)
    with pytest.raises(OpError, match=f"{live} addressable rows of 8"):
        heads.lm_head(operands.normal(1, 64, dtype=torch.bfloat16), weight, live)


@pytest.mark.parametrize("scale", [torch.ones(63), torch.ones(64, dtype=torch.bfloat16)])
def test_scales_that_do_not_fit_are_refused(device, operands, scale):
    x = operands.normal(1, 64, dtype=torch.bfloat16)
    with pytest.raises(OpError, match=r"scale is .*f32\[64\]"):
        open_stream(x, scale.to(device))


def test_odd_rows_have_no_halves(operands):
    weight, _ = matrix(operands, "bf16", 9, 64)
    x = operands.normal(1, 64, dtype=torch.bfloat16)
    with pytest.raises(OpError, match="9 rows"):
        linear.norm_swiglu(open_stream(x, operands.normal(64)), EPS, weight)
