"""Rounds that verify drafts leave what plain decoding leaves, whatever is accepted of them."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from ninfer_core.contract.sampling import SamplingParams
from tests.model.checkpoint_driver import checkpoint_driver, prompt
from tests.model.drafters import BACKENDS, drafting, followers, random_right, scripted
from tests.model.scripted_costs import free
from tests.model.test_parity import prompts

PAIRS = list(itertools.product(range(1, 9), range(1, 8)))
UNITS_AND_PAIRS = [("eager", *pair) for pair in PAIRS] + [
    ("queued", batch, most) for batch, most in ((1, 1), (1, 7), (2, 3), (3, 5), (5, 2), (8, 4))
]
LENGTHS = (1, 5, 63, 64, 65, 30, 2, 17)


def settings(draw: random.Random) -> SamplingParams:
    if draw.random() < 0.5:
        return SamplingParams(temperature=0.0, seed=0)
    return SamplingParams(
        temperature=draw.choice([0.5, 1.0]),
        top_k=draw.choice([0, 20]),
        top_p=draw.choice([1.0, 0.9]),
        min_p=draw.choice([0.0, 0.02]),
        presence_penalty=draw.choice([0.0, 1.5]),
        frequency_penalty=draw.choice([0.0, 0.5]),
        repetition_penalty=draw.choice([1.0, 1.3]),
        seed=draw.randrange(1 << 40),
    )


def plain(case, token_ids, sampling, count) -> tuple[list[int], list]:
    driver = checkpoint_driver(case.model, "eager")
    row = driver.begin(prompt(token_ids), sampling=sampling, max_new_tokens=count)
    driver.generate(row, count)
    return row.tokens, row.logprobs


@pytest.fixture(scope="module")
def answers(build_case):
    """Plain outputs of prompts under many settings, computed once each."""
    known: dict = {}

    def answer(token_ids, sampling, count):
        key = (tuple(token_ids), sampling.seed, sampling.temperature, count)
        if key not in known:
            known[key] = plain(build_case("tied"), token_ids, sampling, count)
        return known[key]

    return answer


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("units", "batch", "most"), UNITS_AND_PAIRS)
def test_outputs_are_those_of_plain_decoding(
    build_case, answers, units, batch, most, backend
) -> None:
    """Each pair of rows and drafts: tokens, and log-probabilities, one for each token."""
    case, draw = build_case("tied"), random.Random(f"{batch} {most}")
    asked = prompts(21, list(LENGTHS[:batch]))
    # Few settings, so that the plain outputs serve many pairs.
    sampling = [settings(random.Random(f"{place} {draw.randrange(2)}")) for place in range(batch)]
    count = 14
    expected = [answers(p, s, count) for p, s in zip(asked, sampling, strict=True)]
    whole = [[*p, *tokens] for p, (tokens, _) in zip(asked, expected, strict=True)]
    drafter = scripted(backend, followers(*whole), random_right(batch * 8 + most, most))
    driver = checkpoint_driver(
        case.model,
        units,
        free(drafting(case, drafter, most)),
        max_concurrency=batch,
        max_context=192,
    )
    rows = [
        driver.begin(prompt(p), sampling=s, lane=lane, max_new_tokens=count)
        for lane, (p, s) in enumerate(zip(asked, sampling, strict=True))
    ]
    for row in rows:
        driver.prefill(row)
    rounds = 0
    while running := [row for row in rows if len(row.tokens) < count]:
        driver.decode(running)
        rounds += 1
    for row, (tokens, logprobs) in zip(rows, expected, strict=True):
        assert row.tokens == tokens
        assert row.logprobs == logprobs
    assert rounds < count - 1


@pytest.mark.parametrize("units", ["eager", "queued"])
@pytest.mark.parametrize("most", [1, 3, 7])
@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("tied", "mtp"),
        ("wide_values", "mtp"),
        ("all_attention_last", "mtp"),
        ("tied", "dflash"),
        ("tied", "dflash2"),
    ],
)
def test_every_accepted_length_leaves_the_state_of_steps(
    build_case, kind, most, units, backend
) -> None:
    """Every A from 0 to K, in rows of both sides of a page's edge. What is not accepted leaves no
    trace in states, caches, counts or the drafter: it is compared with a run that accepts nothing,
    and the target's part of it with one that drafts nothing."""
    case = build_case(kind)
    asked = prompts(22, [58])[0]
    sampling = SamplingParams(temperature=0.8, frequency_penalty=0.4, seed=5)
    steps = checkpoint_driver(case.model, "eager")
    row = steps.begin(prompt(asked), sampling=sampling)
    steps.prefill(row)
    states = {59: steps.state_of(row)}
    for _ in range(3 + (most + 1) * (most + 2) // 2):
        steps.decode([row])
        states[steps.record(row).frontier] = steps.state_of(row)
    script = followers([*asked, *row.tokens])
    single = checkpoint_driver(
        case.model, "eager", free(drafting(case, scripted(backend, script, lambda: 0), most))
    )
    alone, drafted = single.begin(prompt(asked), sampling=sampling), {}
    single.prefill(alone)
    while len(alone.tokens) < len(row.tokens):
        single.decode([alone])
        drafted[single.record(alone).frontier] = single.state_of(alone)
    assert alone.tokens == row.tokens
    drafter = scripted(backend, script, lambda: 0)
    turns = iter([*range(most + 1), *[0] * 100])
    draft = free(drafting(case, drafter, most))
    driver = checkpoint_driver(case.model, units, draft, max_concurrency=1)
    drafter.right = lambda: next(turns)
    forced = driver.begin(prompt(asked), sampling=sampling)
    driver.prefill(forced)
    lengths = []
    while len(lengths) < most + 2:
        before = driver.record(forced).frontier
        driver.decode([forced])
        at = driver.record(forced).frontier
        lengths.append(at - before)
        kept = driver.state_of(forced)
        for ours, theirs in zip(kept, drafted[at], strict=True):
            assert torch.equal(ours, theirs), at
        assert len(kept) > len(states[at])
        for ours, theirs in zip(kept, states[at], strict=False):
            assert torch.equal(ours, theirs), at
    assert lengths == [*range(1, most + 2), 1]
    assert forced.tokens == row.tokens[: len(forced.tokens)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["tied", "one_kv_head"])
def test_a_prefill_of_the_same_tokens_gives_that_state(build_case, kind, backend) -> None:
    """By the chunk route, so up to rounding."""
    case = build_case(kind)
    asked = prompts(23, [70])[0]
    tokens, _ = plain(case, asked, SamplingParams(temperature=0.0, seed=0), 30)
    drafter = scripted(backend, followers([*asked, *tokens]), random_right(3, 3))
    driver = checkpoint_driver(case.model, "eager", drafting(case, drafter, 3))
    row = driver.begin(prompt(asked))
    driver.generate(row, 20)
    at = driver.record(row).frontier
    fresh = checkpoint_driver(case.model, "eager", drafting(case, drafter, 3))
    other = fresh.begin(prompt([*asked, *row.tokens][:at]), max_new_tokens=1)
    fresh.prefill(other)
    assert fresh.record(other).frontier == at
    for ours, theirs in zip(driver.state_of(row), fresh.state_of(other), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4)
