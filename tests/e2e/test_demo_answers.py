"""The demo model, through artifact, plug-ins, engine and frontend."""

from __future__ import annotations

import dataclasses
import random

import pytest

from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.events import FinishReason
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_demo_model.tasks import FAMILIES, draw

GREEDY = SamplingParams(temperature=0.0)


def test_the_first_question_of_the_readme(demo_engine) -> None:
    question = PromptInput(messages=[{"role": "user", "content": "What is 17 + 25?"}])
    result = demo_engine.submit(question, GenerationOptions(sampling=GREEDY)).result(timeout=120)
    assert result.text == "42"
    assert result.finish_reason is FinishReason.STOP_TOKEN
    assert result.reasoning == ""
    assert result.usage.completion_tokens == len(result.token_ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_held_out_cases_of_a_family(demo_engine, accept_scripts, family) -> None:
    from accuracy import answer, reply_of

    rng = random.Random(f"2026/{family}")
    cases = [draw(family, rng, "heldout") for _ in range(20)]
    results = answer(demo_engine, cases)
    right = sum(case.check(reply_of(r)) for case, r in zip(cases, results, strict=True))
    assert right >= 17


def test_greedy_tokens_equal_the_oracle(demo_engine, accept_scripts) -> None:
    from greedy_parity import compare, oracle_model, prompt_of

    rng = random.Random(5)
    cases = [draw(family, rng, "heldout") for family in FAMILIES]
    oracle = oracle_model()
    options = GenerationOptions(sampling=GREEDY, max_new_tokens=24, ignore_eos=True)
    prepared = [demo_engine.prepare(prompt_of(case)) for case in cases]
    handles = [demo_engine.submit(prompt, options) for prompt in prepared]
    found = [
        compare(oracle, prompt.token_ids.tolist(), handle.result(timeout=120).token_ids)
        for prompt, handle in zip(prepared, handles, strict=True)
    ]
    assert all(entry is None or entry["tie"] for entry in found)


def test_alone_and_among_seven_others_are_equal_to_the_bit(demo_engine, accept_scripts) -> None:
    from determinism import alone, requests, together

    asked = requests(16, seed=11)
    expected = alone(demo_engine, asked)
    for trial in range(3):
        order = list(range(len(asked)))
        random.Random(trial).shuffle(order)
        found = together(demo_engine, asked, order)
        assert [found[index] for index in range(len(asked))] == expected


def test_seeds_repeat_and_differ(demo_engine) -> None:
    question = PromptInput(messages=[{"role": "user", "content": "Tell me something."}])

    def tokens(seed: int) -> tuple[int, ...]:
        sampling = SamplingParams(temperature=1.5, seed=seed)
        options = GenerationOptions(sampling=sampling, max_new_tokens=24, ignore_eos=True)
        return demo_engine.submit(question, options).result(timeout=120).token_ids

    assert tokens(1) == tokens(1)
    assert len({tokens(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 1e-6, "top_k": (1 << 31) - 1},
        {"temperature": 1e-6, "repetition_penalty": 0.01},
        {"temperature": 100.0, "top_k": 1, "min_p": 1.0, "top_p": 0.0},
    ],
    ids=["cold and all", "cold and repeating", "hot and one"],
)
def test_extreme_draws_end_like_others_and_the_engine_lives(demo_engine, extreme) -> None:
    question = PromptInput(messages=[{"role": "user", "content": "What is 17 + 25?"}])
    options = GenerationOptions(
        sampling=SamplingParams(seed=(1 << 64) - 1, **extreme), max_new_tokens=8
    )
    result = demo_engine.submit(question, options).result(timeout=120)
    if "repetition_penalty" not in extreme:
        assert result.text == "42"  # only the likeliest token can be drawn
    assert demo_engine.availability().ready


def test_a_longer_limit_than_the_context_is_clamped_and_said(demo_engine) -> None:
    question = PromptInput(messages=[{"role": "user", "content": "What is 2 + 2?"}])
    options = GenerationOptions(sampling=GREEDY, max_new_tokens=10**6)
    result = demo_engine.submit(question, options).result(timeout=120)
    assert result.text == "4"
    assert any("max_new_tokens" in note for note in result.notes)


def test_prompt_logprobs_agree_with_the_scoring_purpose(demo_engine) -> None:
    from ninfer_core import Engine
    from ninfer_core.contract.engine import EngineOptions
    from ninfer_core.contract.instance import Purpose

    text = "Copy this list: red, blue, green."
    ids = demo_engine.tokenize(text)
    options = GenerationOptions(max_new_tokens=0, prompt_logprobs=2)
    result = demo_engine.submit(PromptInput(token_ids=ids), options).result(timeout=120)
    scored = [entry.logprob for entry in result.prompt_logprobs if entry is not None]
    assert result.prompt_logprobs[0] is None
    assert [e.token_id for e in result.prompt_logprobs if e is not None] == ids[1:]
    scoring = EngineOptions(devices=("cpu",), purpose=Purpose.CAUSAL_SCORING, max_context=256)
    with Engine.open("demo", scoring) as engine:
        assert engine.score(ids) == pytest.approx(scored, abs=1e-5)


def test_all_pages_and_slots_return_where_nothing_is_kept() -> None:
    from ninfer_core import Engine
    from ninfer_core.contract.engine import EngineOptions

    question = PromptInput(messages=[{"role": "user", "content": "What is 3 + 4?"}])
    settings = EngineOptions(
        devices=("cpu",), max_concurrency=8, max_pending=20, max_context=512, cache_policy="off"
    )
    with Engine.open("demo", settings) as engine:
        before = engine.memory_summary()
        handles = [engine.submit(question, GenerationOptions(sampling=GREEDY)) for _ in range(20)]
        handles[3].cancel()
        for index, handle in enumerate(handles):
            assert handle.result(timeout=120).text == "7" or index == 3
        after = engine.memory_summary()
    # The host's free memory is not ours alone.
    assert dataclasses.replace(after, devices=before.devices) == before
    assert after.pages_free == after.pages_total
    assert after.state_slots_free == after.state_slots_total


@pytest.mark.parametrize(("prompt", "options"), [("hi", None), (None, {"max_new_tokens": 3})])
def test_wrong_types_are_named(demo_engine, prompt, options) -> None:
    given = prompt or PromptInput(text="hi")
    with pytest.raises(InvalidRequest, match=r"prompt is a str|options is a dict"):
        demo_engine.submit(given, options)
