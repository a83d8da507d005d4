"""Laws written out against the contract's words in float64, wherever the cuts lie."""

from __future__ import annotations

import math

import pytest
import torch
from laws import settings

from ninfer_ops_triton import sampling

VOCABULARY = 2600
"""Three blocks, more tokens than there are candidates."""

CUTS = {
    "none": {},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 20},
    "one": {"top_k": 1},
    "top_k of as many as candidates": {"top_k": 1024},
    "top_k beyond the candidates": {"top_k": 2000},
    "top_k of more than there are": {"top_k": 9000},
    "top_p": {"top_p": 0.7},
    "long nucleus": {"top_p": 0.999},
    "both": {"top_k": 50, "top_p": 0.9},
    "both beyond": {"top_k": 1800, "top_p": 0.98},
    "min_p": {"min_p": 0.2},
    "all": {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "all beyond": {"top_k": 2400, "top_p": 0.995, "min_p": 0.001},
    "cold": {"temperature": 0.05, "top_p": 0.9},
    "hot": {"temperature": 40.0, "top_p": 0.9, "top_k": 2500},
}


def logits_of(device: torch.device, name: str) -> torch.Tensor:
    made = torch.Generator().manual_seed(7)
    x = 3 * torch.randn(len(CUTS), VOCABULARY, generator=made)
    if name == "ties":
        x = x.round()
    elif name == "half":
        x[:, ::2] = -math.inf
    elif name == "few":
        x[:, 7:] = -math.inf
    return x.to(device)


def law_of(line: torch.Tensor, temperature=0.8, top_k=0, top_p=1.0, min_p=0.0) -> torch.Tensor:
    """Ordered by logit, ties by lower id; top-k, then the shortest prefix of top-p, and min-p."""
    values, order = line.double().sort(descending=True, stable=True)
    if temperature <= 0:
        top_k, temperature = 1, 1.0
    weights = ((values - values[0]) / temperature).exp()
    weights[top_k or len(line) :] = 0
    before = weights.cumsum(0) - weights
    kept = (before < top_p * weights.sum()) & (weights >= min_p)
    weights[~kept] = 0
    return torch.zeros(len(line), dtype=torch.float64).scatter_(0, order, weights / weights.sum())


@pytest.mark.parametrize("name", ["plain", "ties", "half", "few"])
def test_laws_are_what_the_contract_says(device, name) -> None:
    logits = logits_of(device, name)
    chosen = list(CUTS.items())[:: {"plain": 1, "ties": 2}.get(name, 4)]
    logits = logits[: len(chosen)]
    asked = [{"temperature": 0.8} | cut for _, cut in chosen]
    made = sampling.sampling_law(logits, settings(device, *asked)).cpu()
    for row, (cut, filters) in enumerate(chosen):
        expected = law_of(logits[row].cpu(), **filters)
        assert not made[row][expected == 0].any(), cut
        assert made[row][expected > 1e-11].all(), cut
        torch.testing.assert_close(made[row].double(), expected, rtol=1e-5, atol=1e-12, msg=cut)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_rows_without_a_law_have_none_and_disturb_no_other(device, broken) -> None:
    logits = logits_of(device, "plain")[:3]
    asked = [{"temperature": heat, "top_k": 30} for heat in (0.8, 0.0, 0.8)]
    clean = sampling.sampling_law(logits, settings(device, *asked))
    logits[:2] = broken if broken < 0 else logits[:2]
    logits[:2, 2321] = broken
    made = sampling.sampling_law(logits, settings(device, *asked))
    assert not made[:2].any()
    assert torch.equal(made[2], clean[2])


def test_a_law_does_not_depend_on_its_company(device) -> None:
    names = ("none", "top_k", "top_k beyond the candidates", "all beyond")
    asked = [{"temperature": 0.8} | CUTS[name] for name in names]
    logits = logits_of(device, "ties")[: len(names)]
    whole = sampling.sampling_law(logits, settings(device, *asked))
    for row in (1, 3):
        alone = sampling.sampling_law(logits[row : row + 1], settings(device, asked[row]))
        assert torch.equal(alone[0], whole[row])


@pytest.mark.parametrize("count", [1, 3, 16, 64])
def test_laws_of_candidates(device, count) -> None:
    """A drafter's few tokens, five rows of each of two sequences."""
    values = torch.randn(10, count, generator=torch.Generator().manual_seed(3)).to(device)
    asked = [{"temperature": 0.7}, {"temperature": 0.0}]
    made = sampling.sampling_law(values, settings(device, *asked)).cpu()
    expected = (values.cpu().double() / 0.7).softmax(1)
    torch.testing.assert_close(made[:5].double(), expected[:5], rtol=1e-5, atol=1e-7)
    assert torch.equal(made[5:].argmax(1), values[5:].cpu().argmax(1))
    assert (made[5:].max(1).values == 1).all()
    assert (made[5:].sum(1) == 1).all()
