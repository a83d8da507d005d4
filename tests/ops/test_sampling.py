"""Laws and draws against enumerations in Python floats."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from ninfer_core.ops.contracts.values import DrawPurpose
from ninfer_core.ops.reference.rng import uniform

V = 40


def enumerate_law(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The law as its contract words it, token by token."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if temperature <= 0:
        return {order[0]: 1.0}
    order = [token for token in order[: top_k or len(order)] if logits[token] > -math.inf]
    weights = {token: math.exp((logits[token] - logits[order[0]]) / temperature) for token in order}
    total = sum(weights.values())
    prefix, mass = [], 0.0
    for token in order:
        if prefix and top_p < 1 and mass >= top_p:
            break
        prefix.append(token)
        mass += weights[token] / total
    kept = {token: weights[token] for token in prefix if weights[token] >= min_p}
    return {token: weight / sum(kept.values()) for token, weight in kept.items()}


FILTERS = [
    dict(zip(("temperature", "top_k", "top_p", "min_p"), values, strict=True))
    for values in product((0.0, 0.3, 1.0, 2.5), (0, 1, 7), (1.0, 0.6, 0.05), (0.0, 0.2))
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_law(ops, operands, settings, filters):
    logits = operands.normal(1, V) * 2
    logits[0, 36:] = -math.inf
    law = ops.sampling_law(logits, settings(filters))
    expected = torch.zeros(V)
    for token, weight in enumerate_law(logits[0].tolist(), **filters).items():
        expected[token] = weight
    torch.testing.assert_close(law[0], expected, rtol=0, atol=2e-6)
    assert torch.equal(law[0] > 0, expected > 0)


@pytest.mark.parametrize("filters", [{"top_k": 3}, {"top_p": 0.3}, {"temperature": 0.0}], ids=str)
def test_ties_go_to_the_lower_id(ops, settings, filters):
    logits = torch.zeros(1, 10)
    logits[0, [0, 9]] = -1.0
    law = ops.sampling_law(logits, settings(filters))
    kept = {3: [1, 2, 3], None: [1]}.get(filters.get("top_k"), [1])
    if "top_p" in filters:
        kept = [1, 2, 3]
    assert law[0].nonzero().squeeze(1).tolist() == kept


def test_an_empty_row_has_no_law_and_draws_zero(ops, settings):
    logits = torch.full((3, V), -math.inf)
    logits[2] = math.nan
    rows = settings({"temperature": 0.0}, {}, {})
    assert not ops.sampling_law(logits[:2], settings({"temperature": 0.0}, {})).any()
    tokens = ops.sample_tokens(logits, rows, torch.zeros(3, dtype=torch.int32), DrawPurpose.DECODE)
    assert tokens.tolist() == [0, 0, 0]


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}], ids=str)
def test_the_draw_inverts_the_law(ops, operands, settings, filters):
    logits = operands.normal(1, V) * 2
    law = ops.sampling_law(logits, settings(filters))[0].double()
    sums = law.cumsum(0)
    for position in range(200):
        where = torch.tensor([position], dtype=torch.int32)
        token = int(ops.sample_tokens(logits, settings(filters), where, DrawPurpose.DECODE))
        target = float(uniform(torch.tensor(0), where, DrawPurpose.DECODE)) * float(sums[-1])
        assert law[token] > 0
        assert (float(sums[token - 1]) if token else 0.0) <= target < float(sums[token])


def test_draws_follow_the_law(ops, operands, settings):
    filters = {"temperature": 0.8, "top_k": 8, "top_p": 0.9}
    logits, draws = operands.normal(1, V) * 1.5, 8000
    tokens = ops.sample_tokens(
        logits.expand(draws, V),
        settings(*[filters | {"seeds": 11}] * draws),
        torch.arange(draws, dtype=torch.int32),
        DrawPurpose.DECODE,
    )
    expected = ops.sampling_law(logits, settings(filters))[0] * draws
    observed = torch.bincount(tokens, minlength=V)
    cells = expected > 0
    assert not observed[~cells].any()
    chi_square = float(((observed - expected)[cells] ** 2 / expected[cells]).sum())
    freedom = int(cells.sum()) - 1
    assert chi_square < freedom + 6 * (2 * freedom) ** 0.5


def test_seed_position_and_purpose_key_the_draw(ops, settings):
    logits, where = torch.zeros(1, 4096), torch.tensor([7], dtype=torch.int32)

    def draw(seed=3, position=7, purpose=DrawPurpose.DECODE):
        rows, place = settings({"seeds": seed}), torch.tensor([position], dtype=torch.int32)
        return int(ops.sample_tokens(logits, rows, place, purpose))

    assert draw() == int(
        ops.sample_tokens(logits, settings({"seeds": 3}), where, DrawPurpose.DECODE)
    )
    others = {draw(seed=4), draw(position=8), draw(purpose=DrawPurpose.PREFILL)}
    assert draw() not in others
    assert len(others) == 3


def test_rows_draw_alike_in_any_company(ops, operands, settings):
    filters = [
        {"temperature": 0.0}, {"seeds": 5}, {"seeds": 6, "top_k": 3}, {"seeds": -7, "top_p": 0.5},
    ]  # fmt: skip
    logits = operands.normal(8, V)
    positions = torch.tensor([4, 5, 9, 10, 0, 1, 70, 71], dtype=torch.int32)
    together = ops.sample_tokens(logits, settings(*filters), positions, DrawPurpose.DECODE)
    for row in range(8):
        alone = ops.sample_tokens(
            logits[row : row + 1],
            settings(filters[row // 2]),
            positions[row : row + 1],
            DrawPurpose.DECODE,
        )
        assert together[row] == alone[0]
