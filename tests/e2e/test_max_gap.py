"""A chunk that was fixed at start is as good as one that was asked for."""

from __future__ import annotations

import pytest

from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams

PROMPT = PromptInput(token_ids=[40 + 7 * n % 300 for n in range(300)])
OPTIONS = GenerationOptions(
    sampling=SamplingParams(temperature=0.0), max_new_tokens=6, ignore_eos=True, logprobs=3
)


def answer(chunk, bound=None):
    from ninfer_core import Engine
    from ninfer_core.contract.engine import EngineOptions

    settings = EngineOptions(
        devices=("cpu",),
        max_concurrency=2,
        max_context=512,
        prefill_chunk=chunk,
        max_gap_ms=bound,
    )
    with Engine.open("demo", settings) as engine:
        result = engine.submit(PROMPT, OPTIONS).result(120)
        return engine.load_summary(), engine.stats().prefill_chunks, result


def test_prompts_are_split_as_with_the_chunk_that_was_chosen(monkeypatch) -> None:
    from ninfer_core.engine import max_gap

    monkeypatch.setattr(max_gap, "choose_chunk", lambda table, bound: 64)
    summary, chunks, fixed = answer(256, 1e6)
    assert (summary.prefill_chunk, chunks) == (64, 5)
    _, same, asked = answer(64)
    assert same == 5
    assert (fixed.token_ids, fixed.logprobs) == (asked.token_ids, asked.logprobs)


def test_a_bound_that_every_chunk_keeps_takes_the_largest() -> None:
    summary, chunks, _ = answer(128, 1e6)
    assert (summary.prefill_chunk, chunks) == (128, 3)
    gap = summary.details["max_gap"]
    assert set(gap["gap_ms"]) == {64, 128}
    assert gap["gap_ms"][64] > 0


def test_a_bound_that_none_keeps_is_refused() -> None:
    from ninfer_core.errors import NinferError

    with pytest.raises(NinferError, match="the smallest gap that this model reaches here is"):
        answer(128, 1e-6)
