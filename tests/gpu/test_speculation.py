"""Speculation on the GPU with the demo model: the text is that of plain decoding, up to ties."""

from __future__ import annotations

import random

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


def answers(drafts: int, sampling: SamplingParams) -> list:
    named = {"plugins": ("spec_mtp",), "draft_tokens": drafts} if drafts else {}
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


@pytest.mark.parametrize("drafts", [1, 3, 7])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_answers_are_those_of_plain_decoding(plain, drafts, temperature):
    sampling = SamplingParams(temperature=temperature, top_k=20, seed=5)
    expected, made = plain(sampling), answers(drafts, sampling)
    same = [a.token_ids == b.token_ids for a, b in zip(made, expected, strict=True)]
    assert sum(same) >= 0.8 * len(same), same
    if temperature == 0:
        for ours, theirs in zip(made, expected, strict=True):
            assert_differs_at_ties_alone(ours, theirs)
    accepted = sum(sum(result.timings.accepted) for result in made)
    rounds = sum(result.timings.rounds for result in made)
    assert accepted > 0.3 * rounds


def assert_differs_at_ties_alone(ours, theirs) -> None:
    for place, (a, b) in enumerate(zip(ours.token_ids, theirs.token_ids, strict=False)):
        if a == b:
            continue
        listed = {entry.token_id: entry.logprob for entry in theirs.logprobs[place].top}
        assert a in listed
        assert abs(listed[a] - theirs.logprobs[place].logprob) < TIE
        return
