"""Faults that people met in the context caches of comparable engines, and what is right here."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest

from ninfer_core.contract.requests import (
    CacheRequest,
    ChatOptions,
    GenerationOptions,
    PromptInput,
)
from ninfer_core.contract.resources import PAGE_TOKENS
from ninfer_core.contract.sampling import SamplingParams

pytestmark = pytest.mark.usefixtures("accept_scripts")

GREEDY = SamplingParams(temperature=0.0)
ONE = GenerationOptions(sampling=GREEDY, max_new_tokens=1)
SHORT = GenerationOptions(sampling=GREEDY, max_new_tokens=16)


@pytest.fixture(scope="module")
def cached(accept_scripts):
    """Engine, Program and the watch over it; room for all that these tests leave."""
    from _reuse import Watch, open_watched

    watch = Watch()
    with open_watched(watch, extra_state_slots=120) as (engine, program):
        yield engine, program, watch


@pytest.fixture(scope="module")
def cold(accept_scripts):
    """An engine of the same splits that keeps nothing."""
    from _reuse import Watch, open_watched

    with open_watched(Watch(), keeps=False) as (engine, _):
        yield engine


def _chat(system: str, *said: str, salt: str | None = None, **chat: bool) -> PromptInput:
    """``said`` alternates between user and assistant."""
    messages = [{"role": "system", "content": system}] if system else []
    for index, text in enumerate(said):
        messages.append({"role": "assistant" if index % 2 else "user", "content": text})
    cache = CacheRequest(salt=salt)
    return PromptInput(messages=messages, chat=ChatOptions(**chat), cache=cache)


def _filler(seed: int, count: int) -> str:
    from _talks import spoken

    return spoken(random.Random(seed), count)


@pytest.mark.parametrize("count", [30, 190, 400], ids=["page", "pages", "many pages"])
def test_short_questions_behind_one_system_text_reuse_it_from_the_second_on(cached, count) -> None:
    """vllm-project/vllm#40696, #42317, #51250, #36493: hits only at sizes tied to the state."""
    engine, _, watch = cached
    system = _filler(count, count)
    before = engine.stats().cached_tokens
    reused = []
    for number in range(6):
        prepared = engine.prepare(_chat(system, f"What is {number + 10} + 25?"))
        usage = engine.submit(prepared, ONE).result(60).usage
        reused.append(usage.cached_tokens)
        assert watch.of(prepared).launched == usage.prompt_tokens - usage.cached_tokens
        shared = prepared.restore_points[0].frontier
    assert reused[0] == 0
    assert set(reused[1:]) == {shared if shared >= PAGE_TOKENS else 0}
    assert engine.stats().cached_tokens - before == sum(reused)


@pytest.mark.parametrize("thinking", [True, False])
def test_every_turn_reads_the_new_tokens_alone(cached, thinking) -> None:
    """ggml-org/llama.cpp#20225, #21831, #22746, ml-explore/mlx-lm#1162: whole history again."""
    engine, _, watch = cached
    said: list[str] = []
    known: set[int] = set()
    for turn in range(3):
        said.append(f"Read this text: {_filler(turn + thinking, 100)} What is {turn} + 5?")
        prepared = engine.prepare(_chat("", *said, thinking=thinking))
        result = engine.submit(prepared, SHORT).result(60)
        points = {point.frontier for point in prepared.restore_points}
        if turn:
            assert watch.of(prepared).launched == prepared.length - max(points & known)
        known = points
        said.append(result.text or "None.")


@pytest.mark.parametrize("length", [63, 64, 65, 127, 128, 129, 191, 192, 193])
def test_a_prompt_that_is_kept_whole_reads_its_last_token(cached, cold, length) -> None:
    """vllm-mlx#145: a prompt without a new token crashed."""
    engine, _, watch = cached
    ids = [random.Random(length).randrange(300, 900) for _ in range(length)]
    options = replace(SHORT, max_new_tokens=3, ignore_eos=True)
    first = engine.submit(PromptInput(token_ids=ids), options).result(60)
    kept = [*ids, *first.token_ids[:-1]]
    prepared = [engine.prepare(PromptInput(token_ids=kept)) for _ in range(2)]
    again = [engine.submit(one, replace(options, max_new_tokens=1)).result(60) for one in prepared]
    longer = engine.prepare(PromptInput(token_ids=[*kept, first.token_ids[-1]]))
    after = engine.submit(longer, replace(options, max_new_tokens=1)).result(60).usage
    for one, result in zip(prepared, again, strict=True):
        assert result.usage.cached_tokens <= len(kept) - 1
        assert watch.of(one).launched == len(kept) - result.usage.cached_tokens >= 1
    assert after.cached_tokens == (len(kept) if len(kept) >= PAGE_TOKENS else 0)
    assert again[0].token_ids == again[1].token_ids == (first.token_ids[-1],)
    whole = cold.submit(PromptInput(token_ids=ids), options).result(60)
    assert whole.token_ids == first.token_ids


def test_nothing_of_one_conversation_is_known_in_another(cached, cold) -> None:
    """Rapid-MLX#1103: a state of another conversation came through the cache."""
    engine, program, _ = cached
    filler = _filler(77, 90)
    told = _chat("", f"{filler} The code for the safe is 4821. What is the code for the safe?")
    asked = _chat("", f"{filler[::-1]} What is the code for the safe?")
    expected = cold.submit(asked, SHORT).result(60)
    assert "4821" not in expected.text
    for salt in (None, "one", "two"):
        own = CacheRequest(salt=salt)
        engine.submit(replace(told, cache=own), SHORT).result(60)
        with engine.submit(replace(told, cache=own), SHORT) as doomed:
            doomed.next_event(60)
            doomed.cancel()
        result = engine.submit(replace(asked, cache=own), SHORT).result(60)
        assert (result.text, result.token_ids) == (expected.text, expected.token_ids)
        assert result.usage.cached_tokens == 0
    program.check()


def test_salts_never_see_each_other(cached) -> None:
    engine, _, _ = cached
    prompt = _chat(_filler(5, 120), "What is 3 + 4?")
    for salt in (None, "one", "two", "One"):
        salted = replace(prompt, cache=CacheRequest(salt=salt))
        cached_tokens = [engine.submit(salted, ONE).result(60).usage.cached_tokens for _ in (1, 2)]
        assert cached_tokens[0] == 0
        assert cached_tokens[1] > 0


def test_paused_requests_go_on_as_if_they_had_been_alone(cold) -> None:
    """vllm-project/vllm-metal#488: a preempted request was read again onto its old state."""
    from _reuse import Watch, open_watched

    prompts = [_chat("", f"Read this: {_filler(n, size)} Go on.") for n, size in ((1, 60), (2, 90))]
    options = GenerationOptions(sampling=GREEDY, max_new_tokens=60, ignore_eos=True, logprobs=1)
    expected = [cold.submit(prompt, options).result(120) for prompt in prompts]
    older, younger = (cold.prepare(prompt).length for prompt in prompts)
    assert PAGE_TOKENS < older < younger - 8 < 2 * PAGE_TOKENS - 8
    assert older + 60 > 2 * PAGE_TOKENS
    small = {"max_context": 320, "kv_tokens": 320, "max_concurrency": 2, "extra_state_slots": 2}
    with open_watched(Watch(), **small) as (engine, program):
        # Five pages: the younger takes the fifth, then the older needs one. Both wait at the door.
        both_are_there, bind = threading.Event(), program.plan_bind
        program.plan_bind = lambda request: bind(request) if both_are_there.wait(60) else None
        handles = [engine.submit(prompt, options) for prompt in prompts]
        both_are_there.set()
        results = [handle.result(120) for handle in handles]
        assert [r.token_ids for r in results] == [e.token_ids for e in expected]
        assert [r.logprobs for r in results] == [e.logprobs for e in expected]
        stats = engine.stats()
        program.check()
    assert stats.pauses > 0
