"""Prompts that begin with a checkpoint on a GPU: equal to cold ones, with nothing allocated."""

from __future__ import annotations

import pytest

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams

DEVICE = "cuda:0"
WAIT = 120.0
SYSTEM = {"role": "system", "content": "You answer in one short line. " * 12}
QUESTIONS = ["What is two plus two? " * 5, "And three plus four?", "Say it once more."]


def opened(**options):
    settings = {"max_concurrency": 2, "max_context": 1024, "prefill_chunk": 64, **options}
    return Engine.open("demo", EngineOptions(devices=(DEVICE,), cache_policy="reuse", **settings))


def ask(engine, messages):
    options = GenerationOptions(
        sampling=SamplingParams(temperature=0.7, seed=5),
        max_new_tokens=24,
        ignore_eos=True,
        logprobs=2,
    )
    return engine.submit(PromptInput(messages=messages), options)


@pytest.mark.parametrize("kv", ["bf16", "int8", "fp8"])
def test_a_warm_prompt_gives_the_cold_ones_bits(kv) -> None:
    """Asked again, each turn starts from a point at which its own cold prompt was split."""
    messages = [SYSTEM]
    with opened(kv_format=kv) as engine:
        [before] = engine.memory_summary().devices
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            cold = ask(engine, messages).result(WAIT)
            for handle in [ask(engine, messages) for _ in range(3)]:
                warm = handle.result(WAIT)
                assert warm.usage.cached_tokens >= max(1, cold.usage.cached_tokens)
                assert (warm.token_ids, warm.logprobs) == (cold.token_ids, cold.logprobs)
            messages.append({"role": "assistant", "content": cold.text})
        [after] = engine.memory_summary().devices
        assert (after.arenas, after.takes, after.allocations) == (
            before.arenas,
            before.takes,
            before.allocations,
        )
        assert engine.stats().checkpoints > 0
