"""Products, embedding and heads against fp64."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference import linear

SHAPES = [(64, 96), (256, 256), (1024, 320), (7, 129), (1, 64)]


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 61])
def test_both_routes_multiply(ops, operands, rows, columns, count):
    weight = operands.weight(rows, columns)
    x = operands.normal(count, columns)
    exact = x.double() @ weight.planes["weight"].double().T
    prepared = ops.prepare_linear(weight)
    for product in (ops.linear_decode(x, prepared), ops.linear_prefill(x, prepared)):
        assert product.shape == (count, rows)
        torch.testing.assert_close(product.double(), exact, rtol=0, atol=4e-6)


def test_bf16_weights_are_widened_exactly(ops, operands):
    weight = operands.weight(48, 64, torch.bfloat16)
    wide = WeightMatrix("fp32", 48, 64, {"weight": weight.planes["weight"].float()})
    x = operands.normal(3, 64)
    products = [ops.linear_decode(x, ops.prepare_linear(w)) for w in (weight, wide)]
    assert products[0].dtype == torch.float32
    assert torch.equal(*products)


def test_strided_rows_are_accepted(ops, operands):
    weight = ops.prepare_linear(operands.weight(32, 64))
    wide = operands.normal(8, 200)
    for count in (3, 8):
        view = wide[:count, 10:74]
        assert torch.equal(
            ops.linear_decode(view, weight), ops.linear_decode(view.contiguous(), weight)
        )


def test_row_route_gives_the_product_too(ops, operands, monkeypatch):
    weight = operands.weight(40, 64)
    monkeypatch.setattr(linear, "_places_agree", lambda turned, block: False)
    by_rows = ops.prepare_linear(weight)
    assert by_rows.format == "reference.by_1"
    x = operands.normal(5, 64)
    exact = x.double() @ weight.planes["weight"].double().T
    torch.testing.assert_close(ops.linear_decode(x, by_rows).double(), exact, rtol=0, atol=4e-6)
    alone = torch.cat([ops.linear_decode(x[row : row + 1], by_rows) for row in range(5)])
    assert torch.equal(ops.linear_decode(x, by_rows), alone)


def test_a_block_whose_places_differ_is_not_used(ops, operands, monkeypatch):
    def even(a, b):
        return torch.stack([torch.mv(b.T, row) for row in a])

    def skewed(a, b):
        """A product whose third row is rounded otherwise."""
        product = even(a, b)
        product[2:3] = torch.nextafter(product[2:3], torch.tensor(9.0))
        return product

    weight = operands.weight(32, 64)
    monkeypatch.setattr(torch, "mm", even)
    assert ops.prepare_linear(weight).format == "reference.upto_8"
    monkeypatch.setattr(torch, "mm", skewed)
    assert ops.prepare_linear(weight).format == "reference.by_2"


def test_counts_that_disagree_are_filled_up(ops, operands, monkeypatch):
    def even(a, b):
        product = torch.stack([torch.mv(b.T, row) for row in a])
        return product if a.shape[0] == 8 else torch.nextafter(product, torch.tensor(9.0))

    monkeypatch.setattr(torch, "mm", even)
    assert ops.prepare_linear(operands.weight(32, 64)).format == "reference.by_8"


@pytest.mark.parametrize("agree", [True, False])
@pytest.mark.parametrize("block", [1, 2, 4, 8])
def test_every_block_size_multiplies_every_count(ops, operands, monkeypatch, block, agree):
    weight = operands.weight(40, 64)
    monkeypatch.setattr(linear, "_choose_block", lambda turned: block)
    monkeypatch.setattr(linear, "_counts_agree", lambda turned, block: agree)
    prepared = ops.prepare_linear(weight)
    for count in (1, block, block + 1, 2 * block, 61):
        x = operands.normal(count, 64)
        exact = x.double() @ weight.planes["weight"].double().T
        product = ops.linear_decode(x, prepared)
        torch.testing.assert_close(product.double(), exact, rtol=0, atol=4e-6)


def test_preparing_twice_changes_nothing(ops, operands):
    prepared = ops.prepare_linear(operands.weight(8, 64))
    assert ops.prepare_linear(prepared) is prepared


def test_embedding_reads_loaded_and_prepared_tables(ops, operands):
    table = operands.weight(50, 64, torch.bfloat16)
    ids = torch.tensor([0, 49, 7, 7], dtype=torch.int32)
    expected = table.planes["weight"].float()[ids.long()]
    for form in (table, ops.prepare_linear(table)):
        rows = ops.embedding(ids, form)
        assert rows.dtype == torch.float32
        assert rows.is_contiguous()
        assert torch.equal(rows, expected)


def test_head_hides_padding_rows(ops, operands):
    weight = operands.weight(96, 64)
    hidden = operands.normal(2, 64)
    logits = ops.lm_head(hidden, ops.prepare_linear(weight), 90)
    exact = hidden.double() @ weight.planes["weight"].double().T
    torch.testing.assert_close(logits[:, :90].double(), exact[:, :90], rtol=0, atol=4e-6)
    assert torch.isneginf(logits[:, 90:]).all()


@pytest.mark.parametrize("count", [1, 127, 128, 129, 300])
def test_prompt_logprobs_are_those_of_the_head(ops, operands, count):
    weight = operands.weight(96, 64)
    hidden = operands.normal(count, 64)
    targets = operands.integers(90, count)
    scored = ops.prompt_logprobs(hidden, ops.prepare_linear(weight), 90, targets, 3)
    exact = hidden.double() @ weight.planes["weight"].double().T[:, :90]
    law = exact.log_softmax(-1)
    chosen = law[torch.arange(count), targets.long()]
    torch.testing.assert_close(scored.chosen.double(), chosen, rtol=0, atol=1e-5)
    values, ids = law.topk(3)
    assert torch.equal(scored.top_ids.long(), ids)
    torch.testing.assert_close(scored.top_values.double(), values, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (WeightMatrix("q4_g64_fp16", 4, 8, {}), "q4_g64_fp16"),
        (WeightMatrix("fp32", 4, 8, {"weight": torch.zeros(8, 4)}), r"\[8, 4\].*\[4, 8\]"),
        (WeightMatrix("fp32", 4, 8, {"weight": torch.zeros(4, 8, device="meta")}), "meta"),
    ],
)
def test_unreadable_weights_are_refused(ops, weight, message):
    with pytest.raises(OpError, match=message):
        ops.prepare_linear(weight)


def test_unprepared_weights_are_refused(ops, operands):
    with pytest.raises(OpError, match="prepare_linear"):
        ops.linear_decode(operands.normal(1, 64), operands.weight(4, 64))
