"""Rows at the ends of a forward pass, in float64 and written out row by row."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.ops.contracts.values import WeightMatrix

EPS = 1e-6


def normed(row: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return row * (row.square().mean() + EPS) ** -0.5 * scale


@pytest.fixture
def doubles(operands):
    def make(*shape: int) -> torch.Tensor:
        return operands.normal(*shape, dtype=torch.float64)

    return make


@pytest.mark.parametrize("width", [1, 3])
def test_hidden_rows_are_kept_and_moved_on(ops, doubles, width):
    """Three sequences; what stands before the first row of each lies in its slot."""
    residual, scale, pool = doubles(3 * width, 8), doubles(8), doubles(5, 8)
    slots, places = torch.tensor([4, 0, 2]), torch.tensor([6, 0, 3], dtype=torch.int32)
    kept, before_pool = torch.full((9, 8), 7.0, dtype=torch.float64), pool.clone()
    before = ops.hand_over(residual, scale, EPS, pool, slots, kept, places)
    expected = torch.full((9, 8), 7.0, dtype=torch.float64)
    for b in range(3):
        for w in range(width):
            row = normed(residual[b * width + w], scale)
            expected[places[b] + w] = row
            ahead = pool[slots[b]] if w == 0 else normed(residual[b * width + w - 1], scale)
            torch.testing.assert_close(before[b * width + w], ahead)
    torch.testing.assert_close(kept, expected)
    assert torch.equal(pool, before_pool)


def test_a_step_moves_hidden_rows_from_slots_to_targets(ops, doubles):
    residual, scale, pool = doubles(2, 8), doubles(8), doubles(6, 8)
    was = pool.clone()
    before = ops.hand_over(
        residual, scale, EPS, pool, torch.tensor([1, 4]), pool, torch.tensor([0, 5])
    )
    assert torch.equal(before, was[[1, 4]])
    torch.testing.assert_close(pool[0], normed(residual[0], scale))
    torch.testing.assert_close(pool[5], normed(residual[1], scale))
    assert torch.equal(pool[1:5], was[1:5])


@pytest.mark.parametrize("inner", [False, True])
def test_draft_inputs_are_two_normed_halves(ops, doubles, inner):
    table, ids = doubles(11, 8), torch.tensor([10, 0, 3], dtype=torch.int32)
    hidden, scales = doubles(3, 8), [doubles(8) for _ in range(3)]
    made = ops.draft_inputs(
        ids, WeightMatrix("fp64", 11, 8, {"weight": table}), scales[0], hidden, scales[1], EPS,
        scales[2] if inner else None,
    )  # fmt: skip
    assert made.shape == (3, 16)
    for row, token in enumerate(ids.tolist()):
        before = normed(hidden[row], scales[2]) if inner else hidden[row]
        torch.testing.assert_close(made[row, :8], normed(table[token], scales[0]))
        torch.testing.assert_close(made[row, 8:], normed(before, scales[1]))


def test_a_stream_opens_over_embedded_rows(ops, operands):
    table = operands.weight(11, 8)
    scale = operands.normal(8)
    stream = ops.embed_stream(torch.tensor([7, 7, 2], dtype=torch.int32), table, scale)
    assert torch.equal(stream.residual, table.planes["weight"][[7, 7, 2]])
    assert stream.scale is scale
