"""Whole draws of the reference against the ops that they are made of, and by hand."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch

from ninfer_core.ops.contracts.values import DrawPurpose, SamplingRows, TokenCounts, TokenMasks

V, LANES = 40, 5
DECODE = DrawPurpose.DECODE
NAN, INF = math.nan, math.inf


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture
def counts(operands):
    return TokenCounts(operands.integers(3, LANES, V), operands.integers(2, LANES, V).bool())


def test_argmax_by_hand(ops):
    logits = torch.tensor(
        [
            [0.5, 2.0, 2.0, 9.0],  # 9 is not addressable, the first of two 2s wins
            [-1.0, -3.0, -2.0, 9.0],
            [1.0, NAN, 5.0, 0.0],
            [1.0, 5.0, INF, 0.0],
            [-INF, 5.0, 0.0, 0.0],
            [1.0, 0.0, 2.0, NAN],  # broken only where nothing looks
            [-INF, -INF, -INF, -INF],
        ]
    )
    drawn = ops.argmax_rows(logits, 3)
    assert drawn.tokens.tolist() == [1, 0, 0, 0, 0, 2, 0]
    assert drawn.broken.tolist() == [False, False, True, True, True, False, True]
    assert (drawn.tokens.dtype, drawn.broken.dtype) == (torch.int32, torch.bool)


SETTINGS = (
    {"temperature": 0.0, "presence": 0.4, "frequency": 0.2},
    {"temperature": 0.7, "top_k": 5, "seeds": 3, "bias_ids": (4, 9), "bias": (2.0, -1.0)},
    {"top_p": 0.8, "seeds": 4, "repetition": 1.3},
    {"seeds": 5, "min_p": 0.1, "banned_ids": (1, 2, 3), "banned_before": 30},
    {"seeds": 6},
)


def test_a_draw_is_its_three_ops(ops, operands, settings, counts):
    logits = operands.normal(3, V) * 3
    lanes, positions = torch.tensor([3, 0, 2]), int32(20, 21, 35)
    masks = TokenMasks(int32(-1, -1, 7, 0, 0, 0).view(3, 2), torch.tensor([True, False, False]))
    drawn = ops.draw_rows(logits, V, settings(*SETTINGS), counts, lanes, positions, DECODE, masks)
    rows = settings(*(SETTINGS[lane] for lane in lanes.tolist()))
    # Padding of ragged lists differs with the rows beside them, which must not matter.
    processed = ops.process_logits(logits, rows, counts, lanes, positions, None, masks)
    assert torch.equal(drawn.tokens, ops.sample_tokens(processed, rows, positions, DECODE))
    assert not drawn.broken.any()


def test_rows_with_drafts_count_those_before_them(ops, operands, settings, counts):
    """Draws of two sequences of three columns are those of processed rows."""
    logits = operands.normal(6, V) * 0.1
    lanes, positions = torch.tensor([2, 2, 2, 0, 0, 0]), int32(7, 8, 9, 30, 31, 32)
    drafts = int32(5, 6, 7, -1).view(2, 2)
    chosen = ({"temperature": 0.0, "presence": 3.0}, {}, {"temperature": 0.0, "frequency": 9.0})
    logits[2, 5] = logits[1, 5] = logits[0, 5] = logits[3:, 7] = 2.5
    counts.generated.zero_()
    drawn = ops.draw_rows(
        logits, V, settings(*chosen), counts, lanes, positions, DECODE, None, drafts
    )
    assert drawn.tokens[[0, 3]].tolist() == [5, 7]
    assert not {5, 7} & set(drawn.tokens[[1, 2, 4, 5]].tolist())
    rows = settings(chosen[2], chosen[0])
    own = torch.tensor([2, 0])
    processed = ops.process_logits(logits, rows, counts, own, positions, drafts)
    assert torch.equal(drawn.tokens, ops.sample_tokens(processed, rows, positions, DECODE))


def test_each_row_takes_the_settings_of_its_lane(ops, settings, counts):
    logits = torch.zeros(LANES, V)
    logits[:, 7] = 1.0
    chosen = (
        {"temperature": 0.0},
        {"temperature": 0.0, "bias_ids": (11,), "bias": (5.0,)},
        {"temperature": 0.0, "banned_ids": (7,), "banned_before": 100},
        {"temperature": 0.0, "banned_ids": (7,), "banned_before": 50},
        {"top_k": 1},
    )
    lanes = torch.tensor([4, 2, 0, 3, 1])
    drawn = ops.draw_rows(
        logits, V, settings(*chosen), counts, lanes, int32(50, 50, 50, 50, 50), DECODE
    )
    assert drawn.tokens.tolist() == [7, 0, 7, 7, 11]


def test_a_broken_row_is_flagged_alone(ops, operands, settings, counts):
    logits = operands.normal(4, V)
    rows = settings(*({"seeds": seed, "temperature": seed % 2} for seed in range(LANES)))
    lanes, positions = torch.arange(4), int32(5, 6, 7, 8)
    sound = ops.draw_rows(logits, V - 2, rows, counts, lanes, positions, DECODE)
    broken = logits.clone()
    broken[1, 3], broken[2, V - 3] = NAN, -INF
    drawn = ops.draw_rows(broken, V - 2, rows, counts, lanes, positions, DECODE)
    assert drawn.broken.tolist() == [False, True, True, False]
    assert drawn.tokens.tolist() == [int(sound.tokens[0]), 0, 0, int(sound.tokens[3])]
    assert not sound.broken.any()


def test_padding_is_neither_drawn_nor_broken(ops, settings, counts):
    logits = torch.zeros(1, V)
    logits[0, V - 3 :] = -INF
    rows = settings(*({"seeds": seed} for seed in range(LANES)))
    for lane in range(LANES):
        drawn = ops.draw_rows(
            logits, V - 3, rows, counts, torch.tensor([lane]), int32(lane), DECODE
        )
        assert not drawn.broken.any()
        assert int(drawn.tokens) < V - 3


def test_nothing_is_written(ops, operands, settings, counts):
    logits, rows = operands.normal(2, V), settings(*SETTINGS)
    before = [logits.clone(), counts.generated.clone(), counts.prompt.clone()]
    given = [getattr(rows, field.name).clone() for field in fields(SamplingRows)]
    ops.argmax_rows(logits, V)
    ops.draw_rows(logits, V, rows, counts, torch.tensor([0, 3]), int32(4, 5), DECODE)
    after = [logits, counts.generated, counts.prompt]
    assert all(map(torch.equal, after, before))
    assert all(
        torch.equal(getattr(rows, field.name), kept)
        for field, kept in zip(fields(SamplingRows), given, strict=True)
    )
