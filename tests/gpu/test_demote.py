"""Kept contexts that go to pinned memory and come back on a GPU: the same bits, nothing allocated,
and rates that were measured."""

from __future__ import annotations

import pytest

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import CacheRequest, GenerationOptions, PromptInput
from ninfer_core.contract.reuse import Tier
from ninfer_core.contract.sampling import SamplingParams

WAIT = 120.0
TALKS, TURNS = 6, 3
QUESTION = [(11 * place) % 290 + 3 for place in range(140)]


def opened(**options):
    settings = {"max_concurrency": 2, "max_context": 1024, "prefill_chunk": 64, **options}
    return Engine.open("demo", EngineOptions(devices=("cuda:0",), cache_policy="reuse", **settings))


def talks_through(engine):
    """Conversations that take turns, longer than what is too short to be kept."""
    prompts = [[(7 * place + talk) % 290 + 3 for place in range(200)] for talk in range(TALKS)]
    told = [[] for _ in prompts]
    for turn in range(TURNS):
        for talk, ids in enumerate(prompts):
            options = GenerationOptions(
                sampling=SamplingParams(temperature=0.7, seed=talk),
                max_new_tokens=9,
                ignore_eos=True,
                logprobs=2,
            )
            cache = CacheRequest(session_key=f"talk {talk}")
            prompt = PromptInput(token_ids=list(ids), cache=cache)
            result = engine.submit(prompt, options).result(WAIT)
            told[talk].append(result)
            ids += [*result.token_ids, *QUESTION[turn:]]
    return told


@pytest.mark.parametrize("kv", ["bf16", "int8", "fp8"])
def test_conversations_come_back_from_the_host(kv) -> None:
    with opened(kv_format=kv, extra_state_slots=40, kv_tokens=20_000) as engine:
        expected = talks_through(engine)
        assert engine.stats().demotions == 0
    with opened(kv_format=kv, extra_state_slots=0, kv_tokens=20_000, host_bytes=1 << 30) as engine:
        [before] = engine.memory_summary().devices
        told = talks_through(engine)
        [after] = engine.memory_summary().devices
        stats = engine.stats()
    assert (after.arenas, after.takes, after.allocations) == (
        before.arenas,
        before.takes,
        before.allocations,
    )
    sources = [[one.usage.cached_tokens for one in turns] for turns in told]
    assert sources == [[one.usage.cached_tokens for one in turns] for turns in expected]
    for turns, wanted in zip(told, expected, strict=True):
        assert [(one.token_ids, one.logprobs) for one in turns] == [
            (one.token_ids, one.logprobs) for one in wanted
        ]
    from_host = [
        one.timings for turns in told for one in turns if one.timings.reuse_tier is Tier.HOST
    ]
    assert len(from_host) >= TALKS
    assert all(timings.restored_bytes > 0 for timings in from_host)
    assert stats.demotions >= len(from_host)
    assert stats.demoted_bytes > 0
