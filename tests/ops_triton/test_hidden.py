"""Fused ends of a forward pass have the bits of the kernels that they stand for."""

from __future__ import annotations

import pytest
import torch
from harness import Guarded, GuardedAllocations, guarded
from matrices import EPS, FORMATS, matrix

from ninfer_core.ops.errors import OpError
from ninfer_ops_triton import hidden, linear, norm
from ninfer_ops_triton.streams import open_stream

BF16 = torch.bfloat16
WIDTHS = [64, 200, 1024]
ROWS = 12


def embedded(operands, kind, width, count):
    """A prepared table, ids, and their rows by the embedding alone."""
    table, _ = matrix(operands, kind, ROWS, width)
    ids = operands.integers(ROWS, count)
    return table, ids, linear.embedding(ids, table)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", FORMATS)
def test_an_embedded_stream_is_an_opened_one(operands, kind, width):
    table, ids, rows = embedded(operands, kind, width, 3)
    scale = guarded(operands.normal(width)).tensor
    with GuardedAllocations():
        stream = hidden.embed_stream(ids, table, scale)
    wanted = open_stream(rows, scale)
    for name in ("residual", "scale", "scaled", "squares"):
        assert torch.equal(getattr(stream, name), getattr(wanted, name)), name


@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize("width", WIDTHS)
def test_hidden_rows_are_normed_rows(operands, width, columns):
    residual = guarded(operands.normal(3 * columns, width, dtype=BF16)).tensor
    scale = guarded(operands.normal(width)).tensor
    pool, kept = operands.normal(6, width, dtype=BF16), Guarded((20, width), BF16, operands.device)
    slots = torch.tensor([5, 0, 2], device=operands.device)
    places = torch.tensor([8, 0, 16], dtype=torch.int32, device=operands.device)
    expected, was = kept.tensor.clone(), pool.clone()
    with GuardedAllocations():
        before = hidden.hand_over(residual, scale, EPS, pool, slots, kept.tensor, places)
    kept.check()
    normed = norm.rms_norm(residual, scale, EPS).view(3, columns, width)
    for b, place in enumerate(places.tolist()):
        expected[place : place + columns] = normed[b]
    # Places that nothing is written to are NaN.
    assert torch.equal(kept.tensor.view(torch.int16), expected.view(torch.int16))
    ahead = torch.cat([pool[slots].unsqueeze(1), normed[:, :-1]], 1)
    assert torch.equal(before.view(3, columns, width), ahead)
    assert torch.equal(pool, was)


def test_hidden_rows_of_a_step_go_to_other_slots(operands):
    residual, scale = operands.normal(2, 96, dtype=BF16), operands.normal(96)
    pool = guarded(operands.normal(6, 96, dtype=BF16))
    was = pool.tensor.clone()
    slots, targets = (torch.tensor(at, device=operands.device) for at in ([1, 4], [0, 5]))
    before = hidden.hand_over(residual, scale, EPS, pool.tensor, slots, pool.tensor, targets)
    pool.check()
    assert torch.equal(before, was[slots])
    was[targets] = norm.rms_norm(residual, scale, EPS)
    assert torch.equal(pool.tensor, was)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", FORMATS)
def test_draft_inputs_are_normed_rows_side_by_side(operands, kind, width, inner):
    table, ids, rows = embedded(operands, kind, width, 3)
    token, before, scale = (guarded(operands.normal(width)).tensor for _ in range(3))
    values = operands.normal(5, 2 * width, dtype=BF16)[:3, :width]
    with GuardedAllocations():
        made = hidden.draft_inputs(ids, table, token, values, before, EPS, scale if inner else None)
    if inner:
        values = norm.rms_norm(values, scale, EPS)
    halves = norm.rms_norm(rows, token, EPS), norm.rms_norm(values, before, EPS)
    assert torch.equal(made, torch.cat(halves, 1))


def test_what_does_not_fit_is_refused(operands):
    table, ids, rows = embedded(operands, "bf16", 64, 3)
    scale, slots = operands.normal(64), torch.zeros(2, dtype=torch.int64, device=operands.device)
    with pytest.raises(OpError, match=r"T >= 1"):
        hidden.embed_stream(ids[:0], table, scale)
    with pytest.raises(OpError, match=r"must be f32\[64\]"):
        hidden.embed_stream(ids, table, scale[:63])
    with pytest.raises(OpError, match=r"must be\s+\[3, 64\]"):
        hidden.draft_inputs(ids, table, scale, rows[:2], scale, EPS)
    with pytest.raises(OpError, match="as embeddings are"):
        hidden.draft_inputs(ids, table, scale, rows.float(), scale, EPS)
    with pytest.raises(OpError, match="3 rows, 2 places and 2 slots"):
        hidden.hand_over(rows, scale, EPS, rows, slots, rows, slots)
    with pytest.raises(OpError, match="kept is"):
        hidden.hand_over(rows[:2], scale, EPS, rows, slots, rows[:, :63], slots)
