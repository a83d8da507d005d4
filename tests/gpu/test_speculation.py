"""Speculation on the GPU with the demo model: the text is that of plain decoding, up to ties."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import ChatOptions, GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_demo_model.tasks import FAMILIES, draw

TIE = 0.05
"""Log-probability within which two tokens are taken for equal in bf16."""


def prompts() -> list[PromptInput]:
    cases = [draw(family, random.Random(f"gpu/{family}"), "heldout") for family in FAMILIES]
    return [
        PromptInput(
            messages=case.messages, tools=case.tools, chat=ChatOptions(thinking=case.thinking)
        )
        for case in cases
    ]


PLUGINS = {"mtp": "spec_mtp", "dflash": "spec_dflash", "dflash2": "spec_dflash"}


@pytest.fixture(autouse=True)
def _priced_alike(monkeypatch):
    """Each draft costs a tenth of a plain round, as where nothing was measured. What was measured
    is the machine's business: a round of so small a model may cost more than its drafts bring, and
    beside other processes costs say little. How many drafts are made would go by it, and with them
    which numbers drawn drafts are drawn with."""
    from ninfer_qwen3_5.program import binding

    prices = vars(binding)["prices_of"]
    monkeypatch.setattr(
        binding, "prices_of", lambda limits: prices(replace(limits, draft_costs=None))
    )


def answers(drafts: int, sampling: SamplingParams, spec: str = "mtp", **changes) -> list:
    named = {"plugins": (PLUGINS[spec],), "draft": spec, "draft_tokens": drafts} if drafts else {}
    named |= changes
    options = EngineOptions(devices=("cuda:0",), max_concurrency=4, max_context=4096, **named)
    asked = GenerationOptions(sampling=sampling, max_new_tokens=200, logprobs=4)
    with Engine.open("demo", options) as engine:
        handles = [engine.submit(prompt, asked) for prompt in prompts()]
        return [handle.result(120.0) for handle in handles]


@pytest.fixture(scope="module")
def plain():
    kept: dict = {}

    def answered(sampling):
        if sampling.temperature not in kept:
            kept[sampling.temperature] = answers(0, sampling)
        return kept[sampling.temperature]

    return answered


@pytest.mark.parametrize(
    ("spec", "drafts"),
    [("mtp", 1), ("mtp", 3), ("mtp", 7), ("dflash", 3), ("dflash", 7), ("dflash2", 7)],
)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_answers_are_those_of_plain_decoding(plain, spec, drafts, temperature):
    sampling = SamplingParams(temperature=temperature, top_k=20, seed=5)
    expected, made = plain(sampling), answers(drafts, sampling, spec)
    same = [a.token_ids == b.token_ids for a, b in zip(made, expected, strict=True)]
    assert sum(same) >= 0.8 * len(same), same
    if temperature == 0:
        for ours, theirs in zip(made, expected, strict=True):
            assert_differs_at_ties_alone(ours, theirs)
    accepted = sum(sum(result.timings.accepted) for result in made)
    rounds = sum(result.timings.rounds for result in made)
    assert accepted > 0.3 * rounds


def test_what_drafts_cost_is_measured_and_told():
    """For every number of drafts and rows; more drafts can be made wherever fewer are wanted, and
    what draws add to a round is never less than nothing."""
    options = EngineOptions(
        devices=("cuda:0",), max_concurrency=8, max_context=1024, plugins=("spec_mtp",),
        draft_tokens=3,
    )  # fmt: skip
    with Engine.open("demo", options) as engine:
        told = engine.load_summary().details["draft"]
    assert (told["backend"], told["tokens"]) == ("mtp", 3)
    assert set(told["costs_ms"]) == {"1", "4", "8"}
    for costs in told["costs_ms"].values():
        assert costs["plain"] > 0
        assert len(costs["verify"]) == len(costs["draft"]) == 4
        assert all(cost > 0 for cost in costs["verify"])
        assert costs["draft"][0] == 0 < costs["draft"][1]
        assert costs["draft"] == sorted(costs["draft"])
        drawn = costs["drawn"]
        assert drawn["plain"] >= costs["plain"]
        pairs = zip(drawn["verify"], costs["verify"], strict=True)
        assert all(more >= less for more, less in pairs)


def test_rounds_ahead_of_each_other_give_what_rounds_alone_give(monkeypatch):
    """The same engine, allowed to launch rounds that draft ahead or not. What runs together, and
    so how wide rounds are, depends on time."""
    from ninfer_qwen3_5.program.queued.spec_launch import SpecLauncher
    from ninfer_qwen3_5.program.queued.units import QueuedUnits

    ahead = []
    fold = SpecLauncher._fold_ahead
    monkeypatch.setattr(
        SpecLauncher, "_fold_ahead", lambda self, rows: (ahead.append(len(rows)), fold(self, rows))
    )
    sampling = SamplingParams(temperature=0.0, seed=5)
    made = answers(3, sampling)
    assert sum(count > 0 for count in ahead) > len(ahead) / 2
    monkeypatch.setattr(QueuedUnits, "may_follow", lambda *given, **named: False)
    before = len(ahead)
    alone = answers(3, sampling)
    assert not any(ahead[before:])
    same = [a.token_ids == b.token_ids for a, b in zip(made, alone, strict=True)]
    assert sum(same) >= 0.8 * len(same), same
    for ours, theirs in zip(made, alone, strict=True):
        assert_differs_at_ties_alone(ours, theirs)


@pytest.mark.parametrize(("spec", "drafts"), [("mtp", 3), ("dflash", 7), ("dflash2", 7)])
def test_verified_rows_have_the_bits_of_steps(plain, spec, drafts):
    """Tokens and log-probabilities: the verify route is row-wise, there is no other mode."""
    for temperature in (0.0, 0.7):
        sampling = SamplingParams(temperature=temperature, top_k=20, seed=5)
        for ours, theirs in zip(answers(drafts, sampling, spec), plain(sampling), strict=True):
            assert ours.token_ids == theirs.token_ids
            assert ours.logprobs == theirs.logprobs


@pytest.mark.parametrize("spec", ["mtp", "dflash", "dflash2"])
def test_drafts_that_are_drawn(plain, spec):
    """Greedy answers stay; drawn ones are the same every time, and drafts are accepted."""
    greedy = SamplingParams(temperature=0.0, top_k=20, seed=5)
    for ours, theirs in zip(
        answers(5, greedy, spec, draft_sampling=True), plain(greedy), strict=True
    ):
        assert_differs_at_ties_alone(ours, theirs)
    drawn = SamplingParams(temperature=1.0, seed=5)
    first, again = (answers(5, drawn, spec, draft_sampling=True) for _ in range(2))
    assert [a.token_ids for a in first] == [b.token_ids for b in again]
    assert sum(sum(result.timings.accepted) for result in first) > 0


def assert_differs_at_ties_alone(ours, theirs) -> None:
    for place, (a, b) in enumerate(zip(ours.token_ids, theirs.token_ids, strict=False)):
        if a == b:
            continue
        listed = {entry.token_id: entry.logprob for entry in theirs.logprobs[place].top}
        assert a in listed
        assert abs(listed[a] - theirs.logprobs[place].logprob) < TIE
        return
