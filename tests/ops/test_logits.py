"""Penalties, bias, bans, masks and log-probabilities."""

from __future__ import annotations

import math

import pytest
import torch

from ninfer_core.ops.contracts.values import TokenCounts, TokenMasks

V = 70


@pytest.fixture
def counts(operands):
    generated = torch.zeros(4, V, dtype=torch.int32)
    generated[2, 5], generated[2, 9], generated[1, 30] = 3, 1, 2
    prompt = torch.zeros(4, V, dtype=torch.bool)
    prompt[2, 9] = prompt[2, 40] = True
    return TokenCounts(generated, prompt)


def process(ops, logits, counts, rows, lanes=(2,), positions=(10,), **rest):
    return ops.process_logits(
        logits,
        rows,
        counts,
        torch.tensor(lanes),
        torch.tensor(positions, dtype=torch.int32),
        **rest,
    )


def test_nothing_asked_gives_the_logits_themselves(ops, operands, counts, settings):
    logits = operands.normal(1, V)
    assert process(ops, logits, counts, settings({})) is logits


def test_penalties_by_hand(ops, counts, settings):
    logits = torch.full((1, V), 2.0)
    logits[0, 9], logits[0, 40] = -2.0, -4.0
    kept = logits.clone()
    asked = settings({"repetition": 2.0, "presence": 0.5, "frequency": 0.25})
    result = process(ops, logits, counts, asked)
    expected = kept.clone()
    expected[0, 5] = 2.0 / 2 - 0.5 - 3 * 0.25
    expected[0, 9] = -2.0 * 2 - 0.5 - 0.25
    expected[0, 40] = -4.0 * 2
    assert torch.equal(result, expected)
    assert torch.equal(logits, kept)


def test_each_row_counts_the_drafts_before_it(ops, counts, settings):
    logits = torch.zeros(6, V)
    asked = settings({"frequency": 1.0}, {"frequency": 2.0})
    drafts = torch.tensor([[5, 7], [30, -1]], dtype=torch.int32)
    before = counts.generated.clone()
    result = process(ops, logits, counts, asked, lanes=(2, 1), positions=range(6), drafts=drafts)
    assert result[:3, 5].tolist() == [-3, -4, -4]
    assert result[:3, 7].tolist() == [0, 0, -1]
    assert result[3:, 30].tolist() == [-4, -6, -6]
    assert torch.equal(counts.generated, before)


def test_bias_adds_and_bans_end_at_their_position(ops, counts, settings):
    logits = torch.zeros(3, V)
    rows = settings(
        {"bias_ids": (3, 69), "bias": (1.5, -100.0)},
        {"banned_ids": (8, 4), "banned_before": 21},
        {},
    )
    result = process(ops, logits, counts, rows, lanes=(0, 1, 2), positions=(20, 20, 20))
    assert result[0, [3, 69, 8]].tolist() == [1.5, -100.0, 0.0]
    assert result[1, [4, 8]].tolist() == [-math.inf] * 2
    assert int(torch.isneginf(result).sum()) == 2
    assert not result[2].any()
    later = process(ops, logits, counts, rows, lanes=(0, 1, 2), positions=(21, 21, 21))
    assert not torch.isneginf(later).any()


def test_masks_allow_bit_by_bit(ops, operands, counts, settings):
    logits = operands.normal(2, V)
    allowed = [0, 31, 32, 63, 64, 69]
    words = [0, 0, 0]
    for token in allowed:
        words[token // 32] |= 1 << (token % 32)
    signed = [word - (1 << 32) if word >= 1 << 31 else word for word in words]
    masks = TokenMasks(
        torch.tensor([signed, [0, 0, 0]], dtype=torch.int32), torch.tensor([True, False])
    )
    result = process(ops, logits, counts, settings({}, {}), (0, 1), (0, 0), masks=masks)
    assert torch.isfinite(result[0]).nonzero().squeeze(1).tolist() == allowed
    assert torch.equal(result[0, allowed], logits[0, allowed])
    assert torch.equal(result[1], logits[1])


def test_padding_rows_stay_forbidden(ops, counts, settings):
    logits = torch.zeros(1, V)
    logits[0, 66:] = -math.inf
    asked = {"repetition": 0.5, "presence": -2.0, "bias_ids": (67,), "bias": (100.0,)}
    counts.prompt[2, 68] = True
    result = process(ops, logits, counts, settings(asked))
    assert torch.isneginf(result[0, 66:]).all()
    assert not result.isnan().any()


def test_nonfinite_rows(ops):
    logits = torch.zeros(5, V)
    logits[:, 66:] = -math.inf
    logits[1, 3], logits[2, 65], logits[4, 0] = math.nan, math.inf, -math.inf
    assert ops.nonfinite_rows(logits, 66).tolist() == [False, True, True, False, True]


def test_counting_takes_what_was_accepted(ops):
    counts = TokenCounts(torch.zeros(3, V, dtype=torch.int32), torch.zeros(3, V, dtype=torch.bool))
    tokens = torch.tensor([[4, 4, 9], [7, 8, 9], [1, 1, 1]], dtype=torch.int32)
    accepted = torch.tensor([3, 1, 0], dtype=torch.int32)
    ops.count_tokens(counts, torch.tensor([2, 0, 1]), tokens, accepted)
    expected = torch.zeros(3, V, dtype=torch.int32)
    expected[2, 4], expected[2, 9], expected[0, 7] = 2, 1, 1
    assert torch.equal(counts.generated, expected)


def test_logprobs_are_of_the_raw_law(ops, operands):
    logits = operands.normal(3, V) * 5
    logits[:, 66:] = -math.inf
    tokens = torch.tensor([0, 65, 12], dtype=torch.int32)
    result = ops.logprobs(logits, tokens, 4)
    law = logits.double() - logits.double().exp().sum(-1, keepdim=True).log()
    torch.testing.assert_close(
        result.chosen.double(), law[range(3), tokens.long()], rtol=0, atol=2e-5
    )
    for row in range(3):
        best = sorted(range(V), key=lambda token, row=row: (-float(logits[row, token]), token))[:4]
        assert result.top_ids[row].tolist() == best
        torch.testing.assert_close(
            result.top_values[row].double(), law[row, best], rtol=0, atol=2e-5
        )


def test_tied_alternatives_go_by_id(ops):
    logits = torch.zeros(1, V)
    logits[0, [50, 20]] = 1.0
    result = ops.logprobs(logits, torch.tensor([0], dtype=torch.int32), 5)
    assert result.top_ids.tolist() == [[20, 50, 0, 1, 2]]


def test_no_alternatives(ops):
    result = ops.logprobs(torch.zeros(2, V), torch.tensor([0, 1], dtype=torch.int32), 0)
    assert result.top_ids.shape == result.top_values.shape == (2, 0)
    assert result.chosen.tolist() == pytest.approx([-math.log(V)] * 2)
