"""Draws of the Triton kernels against the float64 law, with cuts settled in both ways."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from harness import GuardedAllocations
from laws import Verdicts, law_of, settings
from quick import patch_once

from ninfer_core.ops.contracts.values import DrawPurpose, TokenCounts, TokenMasks
from ninfer_core.ops.reference import OPS as REFERENCE

draws = pytest.importorskip("ninfer_ops_triton.draws")
DECODE = DrawPurpose.DECODE
INF = math.inf


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    patch_once(monkeypatch)


@pytest.fixture(params=["candidates", "steps"])
def cuts(request, monkeypatch):
    """Cuts settled among candidates, or by steps over the row because next to none fit."""
    if request.param == "steps":
        monkeypatch.setattr(draws, "CANDIDATES", 4)
        monkeypatch.setattr(draws, "FEW", 2)
    return request.param


@pytest.fixture
def blocks(monkeypatch):
    """Small blocks, so that short rows have many."""
    monkeypatch.setattr(draws, "BLOCK", 128)


def positions(device, *values):
    return torch.tensor(values, dtype=torch.int32, device=device)


def no_counts(device, lanes, vocabulary):
    return TokenCounts(
        torch.zeros(lanes, vocabulary, dtype=torch.int32, device=device),
        torch.zeros(lanes, vocabulary, dtype=torch.bool, device=device),
    )


FILTERS = [
    {"temperature": t, "top_k": k, "top_p": p, "min_p": m}
    for t, k, p, m in product((0.5, 1.5), (0, 1, 20), (1.0, 0.9, 0.2), (0.0, 0.05))
]


def test_draws_are_those_of_the_law(device, operands, cuts, blocks):
    vocabulary, verdicts = 307, Verdicts()
    chosen = [filters | {"seeds": 7 * n} for n, filters in enumerate(FILTERS)]
    logits = operands.normal(len(chosen), vocabulary, scale=0.5)
    logits[::2] *= 8
    logits[::3] = (logits[::3] * 2).round() / 2
    where = positions(device, *range(len(chosen)))
    with GuardedAllocations():
        tokens = draws.sample_tokens(logits, settings(device, *chosen), where, DECODE)
    for row, (token, filters) in enumerate(zip(tokens.tolist(), chosen, strict=True)):
        verdicts.check(token, logits[row], filters, row, DECODE)
    assert verdicts.close <= 2


def test_cuts_at_the_real_block(device, operands):
    """More tokens than fit a small tile, a large one, and none."""
    vocabulary, verdicts = 2501, Verdicts()
    chosen = [
        {"top_k": 400, "top_p": 0.97, "seeds": 1},
        {"top_p": 0.9, "seeds": 2},
        {"top_k": 1500, "seeds": 3},
        {"top_k": 1500, "top_p": 0.95, "seeds": 4},
        {"seeds": 5},
    ]
    logits = operands.normal(len(chosen), vocabulary)
    logits[0] *= 3
    rows, where = settings(device, *chosen), positions(device, 4, 5, 6, 7, 8)
    tokens = draws.sample_tokens(logits, rows, where, DECODE)
    for row, filters in enumerate(chosen):
        verdicts.check(int(tokens[row]), logits[row], filters, 4 + row, DECODE)
    assert verdicts.close == 0


def test_ties_at_a_cut_go_to_the_lower_id(device, cuts, blocks):
    logits = torch.zeros(12, 300, device=device)
    logits[:, [0, 290]] = -1.0
    logits[:, 5] = -0.0
    chosen = [{"top_k": 2}, {"top_p": 0.006}, {"top_k": 290, "top_p": 0.005}] * 4
    rows = settings(device, *(filters | {"seeds": n} for n, filters in enumerate(chosen)))
    tokens = draws.sample_tokens(logits, rows, positions(device, *range(12)), DECODE).tolist()
    assert [set(tokens[kind::3]) for kind in range(3)] == [{1, 2}] * 3


def test_the_draw_is_a_sample_of_the_law(device, operands):
    """Chi-square of draws at consecutive positions (few, where they are slow), and inversion."""
    count = 20_000 if device.type == "cuda" else 60
    chosen = {"temperature": 1.3, "top_k": 30, "top_p": 0.9, "seeds": 11}
    logits = operands.normal(1, 50, scale=1.5)
    where = positions(device, *range(count))
    tokens = draws.sample_tokens(
        logits.expand(count, -1).contiguous(), settings(device, *[chosen] * count), where, DECODE
    ).cpu()
    law, margin = law_of(logits[0], chosen)
    assert margin > 1e-5
    verdicts = Verdicts()
    for position in range(0, count, max(1, count // 60)):
        verdicts.check(int(tokens[position]), logits[0], chosen, position, DECODE)
    assert verdicts.close <= 2
    observed, cells = torch.bincount(tokens, minlength=50), law > 0
    assert not observed[~cells].any()
    expected = law[cells] * count
    chi_square = float(((observed[cells] - expected) ** 2 / expected).sum())
    freedom = int(cells.sum()) - 1
    assert chi_square < freedom + 6 * (2 * freedom) ** 0.5


def test_greedy_rows_take_the_first_maximum(device, operands, blocks):
    logits = (operands.normal(3, 500) * 2).round()
    rows = settings(device, *[{"temperature": 0.0, "top_k": 3, "top_p": 0.5}] * 3)
    tokens = draws.sample_tokens(logits, rows, positions(device, 1, 2, 3), DECODE)
    assert torch.equal(tokens.cpu(), logits.cpu().argmax(1).int())


def test_rows_without_a_law_give_zero(device, cuts, blocks):
    logits = torch.full((6, 300), -INF, device=device)
    logits[2, 7:9], logits[3, 4], logits[4, 299] = 3.0, math.nan, 2.0
    chosen = [
        {"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 1, "seeds": 9}, {"top_k": 2},
        {"top_p": 0.5}, {"min_p": 0.1},
    ]  # fmt: skip
    where = positions(device, *range(6))
    tokens = draws.sample_tokens(logits, settings(device, *chosen), where, DECODE)
    assert tokens.tolist() == [0, 0, 7, 0, 299, 0]


@pytest.mark.parametrize("temperature", [1e-42, 1e-30, 1e30])
def test_extreme_temperatures(device, operands, blocks, temperature):
    logits = operands.normal(2, 300)
    rows = settings(
        device, {"temperature": temperature, "top_p": 0.9}, {"temperature": temperature}
    )
    tokens = draws.sample_tokens(logits, rows, positions(device, 3, 4), DECODE)
    if temperature < 1:
        assert torch.equal(tokens, logits.argmax(1).int())
    else:
        verdicts = Verdicts()
        verdicts.check(int(tokens[1]), logits[1], {"temperature": temperature}, 4, DECODE)


MIXED = (
    {"temperature": 0.0, "presence": 0.4, "frequency": 0.2},
    {"temperature": 0.7, "top_k": 5, "seeds": 3, "bias_ids": (4, 290), "bias": (6.0, 5.0)},
    {"top_p": 0.8, "seeds": -4, "repetition": 1.3},
    {"seeds": 5, "min_p": 0.1, "banned_ids": tuple(range(90)), "banned_before": 30},
    {"seeds": 6, "temperature": 2.0},
)


@pytest.fixture
def counts(device, operands):
    return TokenCounts(operands.integers(3, 5, 300), operands.integers(2, 5, 300).bool())


def whole_draw(logits, addressable, counts, lanes, where, masks=None, drafts=None):
    rows = settings(logits.device, *MIXED)
    with GuardedAllocations():
        return draws.draw_rows(
            logits, addressable, rows, counts, lanes, where, DECODE, masks, drafts
        )


def test_whole_draws_are_those_of_the_reference(device, operands, counts, cuts, blocks):
    logits = operands.normal(10, 300, scale=2.0)
    logits[:, 297:] = -INF
    lanes = torch.tensor([3, 0, 1, 2, 4, 4, 2, 3, 1, 0], device=device)
    where = positions(device, 20, 21, 22, 23, 24, 35, 36, 37, 38, 39)
    words = operands.integers(2**31 - 1, 10, 10)
    masks = TokenMasks(words, torch.tensor([True, False] * 5, device=device))
    drawn = whole_draw(logits, 297, counts, lanes, where, masks)
    host = TokenCounts(counts.generated.cpu(), counts.prompt.cpu())
    expected = REFERENCE.draw_rows(
        logits.cpu(), 297, settings(torch.device("cpu"), *MIXED), host, lanes.cpu(), where.cpu(),
        DECODE, TokenMasks(words.cpu(), masks.active.cpu()),
    )  # fmt: skip
    assert torch.equal(drawn.tokens.cpu(), expected.tokens)
    assert not drawn.broken.any()


def test_draws_of_verified_rows_count_the_drafts_before_them(device, operands, counts, blocks):
    logits = operands.normal(6, 300, scale=0.2)
    logits[:, 7], logits[:, 8] = 5.0, 4.9
    lanes = torch.tensor([0, 0, 0, 2, 2, 2], device=device)
    where = positions(device, 20, 21, 22, 30, 31, 32)
    drafts = positions(device, 7, 8, 8, -1).view(2, 2)
    drawn = whole_draw(logits, 300, counts, lanes, where, None, drafts)
    host = TokenCounts(counts.generated.cpu(), counts.prompt.cpu())
    expected = REFERENCE.draw_rows(
        logits.cpu(), 300, settings(torch.device("cpu"), *MIXED), host, lanes.cpu(), where.cpu(),
        DECODE, None, drafts.cpu(),
    )  # fmt: skip
    assert torch.equal(drawn.tokens.cpu(), expected.tokens)
    without = whole_draw(logits, 300, counts, lanes, where)
    assert not torch.equal(drawn.tokens[:3], without.tokens[:3])


def test_rows_draw_alike_in_any_company(device, operands, counts, blocks):
    logits = operands.normal(5, 300, scale=2.0)
    lanes, where = torch.arange(5, device=device), positions(device, 9, 8, 7, 6, 5)
    together = whole_draw(logits, 300, counts, lanes, where)
    for rows in ([4], [2, 0], [1, 3, 2]):
        some = whole_draw(logits[rows], 300, counts, lanes[rows], where[rows])
        assert torch.equal(some.tokens, together.tokens[rows])


def test_broken_rows_are_flagged_alone(device, operands, counts, blocks):
    logits = operands.normal(5, 300, scale=2.0)
    logits[:, 298:] = -INF
    lanes, where = torch.arange(5, device=device), positions(device, 9, 8, 7, 6, 5)
    sound = whole_draw(logits, 298, counts, lanes, where)
    assert not sound.broken.any()
    logits[0, 297], logits[2, 0], logits[3, 150] = math.nan, INF, -INF
    drawn = whole_draw(logits, 298, counts, lanes, where)
    assert drawn.broken.tolist() == [True, False, True, True, False]
    assert drawn.tokens[[0, 2, 3]].tolist() == [0, 0, 0]
    assert torch.equal(drawn.tokens[[1, 4]], sound.tokens[[1, 4]])


def test_few_allowed_tokens(device, operands, blocks):
    """A mask leaves tokens of one block alone, and a row where the mask leaves none draws 0."""
    logits = operands.normal(3, 300, scale=2.0)
    words = torch.zeros(3, 10, dtype=torch.int32, device=device)
    words[:2, 5] = 0b1011000
    masks = TokenMasks(words, torch.ones(3, dtype=torch.bool, device=device))
    chosen = [{"top_k": 2, "seeds": 3}, {"top_p": 0.99, "seeds": 4}, {"top_p": 0.9}]
    drawn = draws.draw_rows(
        logits, 300, settings(device, *chosen), no_counts(device, 3, 300),
        torch.arange(3, device=device), positions(device, 4, 5, 6), DECODE, masks,
    )  # fmt: skip
    left = torch.full((3, 300), -INF)
    left[:2, [163, 164, 166]] = logits[:2, [163, 164, 166]].cpu()
    verdicts = Verdicts()
    for row in range(2):
        verdicts.check(int(drawn.tokens[row]), left[row], chosen[row], 4 + row, DECODE)
    assert verdicts.close == 0
    assert int(drawn.tokens[2]) == 0
    assert not drawn.broken.any()


def test_ids_beyond_the_addressable_are_never_drawn(device):
    logits = torch.zeros(2, 300, device=device)
    logits[:, 3:] = 50.0
    rows = settings(device, {"temperature": 0.0}, {"temperature": 1.0})
    drawn = draws.draw_rows(
        logits, 3, rows, no_counts(device, 2, 300), torch.arange(2, device=device),
        positions(device, 4, 5), DECODE,
    )  # fmt: skip
    assert drawn.tokens[0] == 0
    assert drawn.tokens[1] < 3
