"""Products of the prefill route and log-probabilities of prompts against float64."""

from __future__ import annotations

import pytest
import torch
from harness import assert_close_to_oracle
from matrices import FORMATS, matrix, stored_matrix

from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton import prefill_linear, weights


@pytest.fixture(params=FORMATS)
def kind(request):
    return request.param


@pytest.fixture
def small_blocks(monkeypatch):
    """Widened blocks of 128 rows, or of all in one where they are fewer."""
    monkeypatch.setattr(prefill_linear, "WIDENED", 1)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("count", [1, 130])
@pytest.mark.parametrize(("rows", "columns"), [(130, 200), (7, 1100)])
def test_products(operands, kind, count, rows, columns):
    weight, dense = matrix(operands, kind, rows, columns)
    x = operands.normal(count, columns, dtype=torch.bfloat16)
    residual = operands.normal(count, rows, dtype=torch.bfloat16)
    exact, product = x.cpu().double() @ dense.T, x.cpu() @ dense.bfloat16().T
    result = prefill_linear.linear_prefill(x, weight)
    assert result.dtype == torch.bfloat16
    assert_close_to_oracle(result, exact, product)
    added = prefill_linear.linear_prefill_add(x, weight, residual.clone())
    assert_close_to_oracle(added, exact + residual.cpu().double(), product + residual.cpu())


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("columns", [64, 2052, 77])
def test_widened_weights_are_rounded_once(operands, kind, columns):
    if kind == "bf16":
        pytest.skip("bf16 is not widened")
    weight, dense = matrix(operands, kind, 133, columns)
    blocks = [
        (first, last, block.cpu().clone())
        for first, last, block in prefill_linear.widened_blocks(weight, 131)
    ]
    assert [(first, last) for first, last, _ in blocks] == [(0, 128), (128, 131)]
    assert torch.equal(torch.cat([block for *_, block in blocks]), dense[:131].bfloat16())


@pytest.mark.parametrize("count", [1, 128, 131])
def test_prompt_logprobs(operands, kind, count):
    weight, dense = matrix(operands, kind, 96, 64)
    hidden = operands.normal(count, 64, dtype=torch.bfloat16, scale=3.0)
    targets = operands.integers(90, count)
    scored = prefill_linear.prompt_logprobs(hidden, weight, 90, targets, 3)
    law = (hidden.cpu().double() @ dense[:90].bfloat16().double().T).log_softmax(-1)
    chosen = law.gather(1, targets.cpu().long()[:, None])[:, 0]
    torch.testing.assert_close(scored.chosen.cpu().double(), chosen, rtol=0, atol=1e-4)
    values, ids = law.topk(3)
    assert torch.equal(scored.top_ids.cpu().long(), ids)
    torch.testing.assert_close(scored.top_values.cpu().double(), values, rtol=0, atol=1e-4)


def test_ties_go_to_the_lower_id(device):
    plane = torch.zeros(9, 64, dtype=torch.bfloat16, device=device)
    plane[[2, 5, 7], 0] = 1.0
    weight = WeightMatrix("bf16", 9, 64, {"weight": plane})
    hidden = torch.ones(2, 64, dtype=torch.bfloat16, device=device)
    targets = torch.tensor([5, 0], dtype=torch.int32, device=device)
    scored = prefill_linear.prompt_logprobs(hidden, weight, 8, targets, 5)
    assert scored.top_ids.tolist() == [[2, 5, 7, 0, 1]] * 2
    assert scored.chosen[0] == scored.top_values[0, 0]
    none = prefill_linear.prompt_logprobs(hidden, weight, 8, targets, 0)
    assert none.top_ids.shape == (2, 0)
    assert torch.equal(none.chosen, scored.chosen)


@pytest.mark.parametrize(
    ("addressable", "targets", "top", "message"),
    [(9, 3, 1, r"\[3\].*\[2\]"), (10, 2, 1, "10 addressable"), (4, 2, 5, "top 5")],
)
def test_questions_that_do_not_fit_are_refused(operands, addressable, targets, top, message):
    weight, _ = matrix(operands, "bf16", 9, 64)
    hidden = operands.normal(2, 64, dtype=torch.bfloat16)
    with pytest.raises(OpError, match=message):
        prefill_linear.prompt_logprobs(
            hidden, weight, addressable, operands.integers(9, targets), top
        )


class TestPrepare:
    def test_a_prepared_weight_is_returned_as_it_is(self, operands, kind):
        weight, _ = matrix(operands, kind, 9, 65)
        assert weights.prepare_linear(weight) is weight

    @pytest.mark.parametrize(("rows", "columns"), [(32, 300), (9, 300), (48, 64)])
    def test_four_bit_groups_are_put_in_the_order_that_a_warp_reads(self, operands, rows, columns):
        stored, _ = stored_matrix(operands, "q4", rows, columns)
        codes, scales = (stored.planes[name].clone() for name in ("codes", "scales"))
        prepared = weights.prepare_linear(stored)
        whole = -(-rows // 16) * 16
        flat = prepared.planes["codes"].flatten().tolist()
        assert prepared.planes["scales"].shape == (scales.shape[1], whole)
        assert torch.equal(prepared.planes["scales"][:, :rows].cpu(), scales.t().cpu())
        # By hand: 512 bytes for 16 rows and 64 columns, 16 of them for each thread of a warp.
        expected = [0] * (whole * codes.shape[1])
        for row in range(rows):
            for byte in range(codes.shape[1]):
                group, column = divmod(2 * byte, 64)
                half, eighth = divmod(column, 32)
                thread = row % 16 // 2 * 4 + eighth // 8
                place = 16 * thread + 8 * half + 4 * (row % 2) + eighth % 8 // 2
                place += 512 * group + row // 16 * 16 * codes.shape[1]
                expected[place] = int(codes[row, byte])
        assert flat == expected

    def test_whole_blocks_stay_where_they_are_on_a_gpu(self, operands):
        stored, _ = stored_matrix(operands, "q4", 32, 300)
        before = {name: plane.clone() for name, plane in stored.planes.items()}
        prepared = weights.prepare_linear(stored)
        for name, plane in prepared.planes.items():
            if plane.is_cuda:
                assert plane.data_ptr() == stored.planes[name].data_ptr()
            else:
                assert torch.equal(stored.planes[name], before[name])

    def test_codes_are_put_in_order_a_piece_at_a_time(self, operands, monkeypatch):
        stored, _ = stored_matrix(operands, "q4", 80, 200)
        again = WeightMatrix(
            stored.format, 80, 200, {name: plane.clone() for name, plane in stored.planes.items()}
        )
        at_once = weights.prepare_linear(stored).planes["codes"]
        monkeypatch.setattr(weights, "TURNED_BYTES", 2 * 16 * 128)
        assert torch.equal(weights.prepare_linear(again).planes["codes"], at_once)

    def altered(self, operands, kind, name, change):
        weight, _ = stored_matrix(operands, kind, 8, 128)
        planes = {**weight.planes, name: change(weight.planes[name])}
        kept = {key: plane for key, plane in planes.items() if plane is not None}
        return WeightMatrix(weight.format, 8, 128, kept)

    @pytest.mark.parametrize(
        ("kind", "name", "change", "message"),
        [
            ("bf16", "weight", lambda p: p.float(), r"float32\[8, 128\].*bfloat16\[8, 128\]"),
            ("bf16", "weight", lambda p: p.t().contiguous(), r"\[128, 8\].*\[8, 128\]"),
            ("bf16", "weight", lambda p: p.t().contiguous().t(), "not contiguous"),
            ("bf16", "weight", lambda p: None, "missing"),
            ("bf16", "weight", lambda p: p.to("meta"), "not on meta"),
            ("fp8", "scales", lambda p: p.half(), r"float16\[8\].*bfloat16\[8\]"),
            ("fp8", "codes", lambda p: None, "'codes'.*missing"),
            ("q4", "codes", lambda p: p[:, :-1].contiguous(), r"\[8, 63\].*\[8, 64\]"),
            ("q4", "scales", lambda p: p.t().contiguous().t(), "not contiguous"),
            ("q4", "codes", lambda p: p.new_zeros(514)[2:].view(8, 64), "multiple of 4 bytes"),
        ],
    )
    def test_planes_that_do_not_fit_are_refused(self, operands, kind, name, change, message):
        with pytest.raises(OpError, match=message):
            weights.prepare_linear(self.altered(operands, kind, name, change))

    def test_formats_that_are_not_read_are_refused(self, operands):
        with pytest.raises(OpError, match="fp32") as caught:
            weights.prepare_linear(WeightMatrix("fp32", 4, 8, {}))
        assert "q4_g64_fp16" in str(caught.value.hint)

    def test_empty_weights_are_refused(self, operands):
        empty = operands.normal(0, 8, dtype=torch.bfloat16)
        with pytest.raises(OpError, match="0 rows"):
            weights.prepare_linear(WeightMatrix("bf16", 0, 8, {"weight": empty}))
