"""How rows go on from rounds in flight, and what is folded, word by word."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.ops.contracts.verifying import Behind, FoldRows, GivenRows

I32 = torch.int32


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=I32)


KEPT = torch.tensor(
    # token, start, remaining, taken, last, live, three drafts
    [
        [40, 400, 41, 2, 7, 2, 43, 44, 45],
        [50, 500, 51, 3, 9, 1, 53, 54, 55],
        [60, 600, 61, 1, 3, 4, 63, 64, 65],
    ],
    dtype=I32,
)
TOKENS = ints(70, 71, 72)


def given(width: int) -> GivenRows:
    """Behind nothing on lane 1, behind a plain round on lane 2, behind a speculative one on 0."""
    ids = [[11, 12, 13, 14][:width], [21, 22, 23, 24][:width], [31, 32, 33, 34][:width]]
    return GivenRows(
        ids=torch.tensor(ids, dtype=I32).flatten(),
        starts=ints(100, 200, 300),
        live=ints(width, 1, 1),
        deltas=ints(5, -5, 0),
        slots=ints(8, 6, 4),
        lanes=ints(1, 2, 0),
        remaining=ints(15, 25, 35),
        most=ints(3, 2, 1),
        behind=ints(Behind.NOTHING, Behind.PLAIN, Behind.SPECULATIVE),
        places=ints(0, 4, 8),
    )


@pytest.mark.parametrize("width", [1, 2, 4])
def test_rows_go_on_from_what_is_kept(ops, width):
    rows = ops.resolve_rows(given(width), KEPT, TOKENS)
    expected = [[11, 12, 13, 14][:width], [72, 22, 23, 24][:width], [40, 43, 44, 45][:width]]
    assert rows.ids.view(3, width).tolist() == expected
    assert rows.starts.tolist() == [100, 200, 400]
    assert rows.live.tolist() == [width, 1, 2]
    assert rows.remaining.tolist() == [15, 25, 41]
    assert rows.deltas.tolist() == [5, -5, 0]
    assert rows.most.tolist() == [3, 2, 1]
    assert rows.places.tolist() == [0, 4, 8]
    assert rows.tables.tolist() == [1, 2, 0]
    assert (rows.slots.dtype, rows.slots.tolist()) == (torch.int64, [8, 6, 4])
    columns = range(width)
    assert rows.positions.dtype == rows.chosen.dtype == I32
    assert rows.positions.is_contiguous()
    for axis in rows.positions.view(3, 3, width).tolist():
        assert axis == [[first + w for w in columns] for first in (105, 195, 400)]
    assert rows.chosen.view(3, width).tolist() == [
        [first + 1 + w for w in columns] for first in (100, 200, 400)
    ]
    assert rows.lanes.dtype == torch.int64
    assert rows.lanes.view(3, width).tolist() == [[1] * width, [2] * width, [0] * width]


def folds() -> FoldRows:
    """What the host knows of lane 2, and what it does not of lanes 0 and 1."""
    return FoldRows(
        slots=ints(3, 5, 1), targets=ints(2, 5, 0), lanes=ints(2, 0, 1), counts=ints(0, -1, -1),
        last=ints(1, -1, -1),
    )  # fmt: skip


def test_folds_take_what_is_kept_where_the_host_does_not_know(ops):
    hidden = torch.arange(30.0).view(10, 3)
    pool = torch.full((6, 3), -1.0)
    made = ops.resolve_folds(folds(), KEPT, hidden, pool)
    assert (made.slots.dtype, made.slots.tolist()) == (torch.int64, [3, 5, 1])
    assert (made.targets.dtype, made.targets.tolist()) == (torch.int64, [2, 5, 0])
    assert (made.counts.dtype, made.counts.tolist()) == (I32, [0, 2, 3])
    expected = torch.full((6, 3), -1.0)
    expected[2], expected[5], expected[0] = hidden[1], hidden[7], hidden[9]
    assert torch.equal(pool, expected)


def test_folds_without_hidden_rows_move_none(ops):
    assert ops.resolve_folds(folds(), KEPT, None, None).counts.tolist() == [0, 2, 3]
