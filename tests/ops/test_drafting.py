"""The ops of block drafters against their definitions, element by element."""

from __future__ import annotations

import math

import pytest
import torch

from ninfer_core.ops.contracts.values import Candidates
from ninfer_core.ops.errors import OpError

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("width", [1, 3])
def test_block_conv_is_its_formula(ops, operands, side, width):
    rows, channels, groups = 6, 12, 3
    x = operands.normal(rows, channels)
    dynamic, base = operands.normal(rows, 4 * groups), operands.normal(2, 2, channels)
    result = ops.block_conv(x, dynamic, base, side, width)
    for row in range(rows):
        for c in range(channels):
            expected = 0.0
            for tap in range(2):
                if row % width < tap:
                    continue
                entry = (side * 2 + tap) * groups + c // (channels // groups)
                weight = float(base[side, tap, c]) + float(dynamic[row, entry])
                expected += weight * float(x[row - tap, c])
            assert result[row, c].item() == pytest.approx(expected, abs=1e-5)


def test_block_conv_starts_as_the_identity(ops, operands):
    x, base = operands.normal(8, 32), torch.zeros(2, 2, 32)
    base[:, 0] = 1.0
    assert torch.equal(ops.block_conv(x, torch.zeros(8, 8), base, 0, 4), x)


def test_a_broken_block_does_not_reach_the_next(ops, operands):
    x, dynamic = operands.normal(6, 8), operands.normal(6, 8)
    base = operands.normal(2, 2, 8)
    healthy = ops.block_conv(x, dynamic, base, 1, 3)
    x[2] = NAN
    assert torch.equal(ops.block_conv(x, dynamic, base, 1, 3)[3:], healthy[3:])


def test_candidates_are_ordered_by_value_then_id(ops):
    logits = torch.tensor(
        [[1.0, 5.0, 3.0, 5.0, -INF, 9.0], [NAN, -INF, 0.0, -0.0, INF, 9.0], [NAN] * 6]
    )
    found = ops.draft_candidates(logits, 4, 5)
    assert found.ids.dtype == torch.int32
    assert found.ids.tolist() == [[1, 3, 2, 0], [4, 2, 3, 0], [0, 1, 2, 3]]
    assert found.values.tolist() == [[5.0, 5.0, 3.0, 1.0], [INF, 0.0, 0.0, -INF], [-INF] * 4]


@pytest.mark.parametrize(("count", "addressable"), [(0, 9), (65, 90), (4, 3)])
def test_candidate_counts_that_cannot_be_are_refused(ops, count, addressable):
    with pytest.raises(OpError, match=f"{count} candidates of {addressable}"):
        ops.draft_candidates(torch.zeros(1, 99), count, addressable)


def greedy(candidates, hidden, anchor, predecessor, successor):
    """The walk of one sequence in Python floats."""
    taken, drafts = anchor, []
    for ids, values, row in zip(
        candidates.ids.tolist(), candidates.values.tolist(), hidden.tolist(), strict=True
    ):
        left = [p * h for p, h in zip(predecessor[taken].tolist(), row, strict=True)]
        scores = [
            value + sum(a * b for a, b in zip(left, successor[token].tolist(), strict=True))
            for token, value in zip(ids, values, strict=True)
        ]
        taken = ids[scores.index(max(scores))]
        drafts.append(taken)
    return drafts


def test_the_walk_takes_what_its_formula_takes(ops, operands):
    vocabulary, rank, sequences, steps = 40, 8, 3, 5
    logits = operands.normal(sequences * steps, vocabulary)
    candidates = ops.draft_candidates(logits, 6, vocabulary)
    hidden = operands.normal(sequences * steps, rank)
    predecessor, successor = (operands.normal(vocabulary, rank) for _ in range(2))
    anchors = operands.integers(vocabulary, sequences)
    drafts = ops.draft_walk(candidates, hidden, anchors, predecessor, successor)
    assert drafts.dtype == torch.int32
    first = candidates.ids.view(sequences, steps, -1)[..., 0]
    assert not torch.equal(drafts, first), "pair scores decide nothing in this case"
    for b in range(sequences):
        mine = slice(b * steps, (b + 1) * steps)
        own = Candidates(candidates.ids[mine], candidates.values[mine])
        expected = greedy(own, hidden[mine], int(anchors[b]), predecessor, successor)
        assert drafts[b].tolist() == expected
        alone = ops.draft_walk(own, hidden[mine], anchors[b : b + 1], predecessor, successor)
        assert alone[0].tolist() == expected


def test_ties_and_broken_scores_take_the_first(ops):
    candidates = Candidates(
        torch.tensor([[7, 2], [3, 5], [1, 0]], dtype=torch.int32),
        torch.tensor([[1.0, 1.0], [NAN, 0.0], [NAN, NAN]]),
    )
    table = torch.zeros(8, 2)
    anchors = torch.tensor([4], dtype=torch.int32)
    drafts = ops.draft_walk(candidates, torch.zeros(3, 2), anchors, table, table)
    assert drafts.tolist() == [[7, 5, 1]]
