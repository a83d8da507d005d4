"""A longest gap fixes the prefill chunk: the choice, and what an engine does with it."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from ninfer_core.contract.engine import EngineOptions, EngineStats
from ninfer_core.contract.requests import CacheMode, GenerationOptions, PromptInput
from ninfer_core.engine import Engine
from ninfer_core.engine.gap_measure import least_context
from ninfer_core.engine.max_gap import keep_gap
from ninfer_core.engine.start_options import InvalidOption
from ninfer_core.testing.fake_instance import KeepPolicy
from tests.engine.gap_clock import ROUND, TOKEN, Clock, opened

WAIT = 20.0


def engine_of(made, bound, **options):
    clock = Clock(made.instance.program)
    limits = made.instance.program.limits
    settings = EngineOptions(
        max_concurrency=limits.max_concurrency,
        prefill_chunk=limits.prefill_chunk,
        max_gap_ms=bound,
        queue_timeout=None,
        **options,
    )
    return Engine(lambda: made, settings, clock=clock), clock


@pytest.mark.parametrize(("bound", "chunk"), [(11.5, 64), (19, 128), (1000, 256)])
def test_an_engine_reads_prompts_in_the_chunks_that_were_chosen(bound, chunk) -> None:
    made = dataclasses.replace(opened(), cache_policy=KeepPolicy())
    modes = set()
    prepare = made.instance.frontend.prepare

    def noted(prompt):
        modes.add(prompt.cache.mode)
        return prepare(prompt)

    made.instance.frontend.prepare = noted
    engine, clock = engine_of(made, bound)
    with engine:
        assert modes == {CacheMode.DISABLED}
        assert engine.stats() == EngineStats()
        assert not made.instance.program.contexts.checkpoints
        summary = engine.load_summary()
        assert summary.prefill_chunk == chunk
        assert summary.details["max_gap"]["chunk"] == chunk
        assert summary.details["max_gap"]["gap_ms"][chunk] <= bound
        clock.chunks.clear()
        prompt = PromptInput(token_ids=[3] * 600)
        engine.submit(prompt, GenerationOptions(max_new_tokens=1)).result(WAIT)
        full = 600 // chunk
        assert clock.chunks[:full] == [chunk] * full
        assert max(clock.chunks) == chunk


def test_a_stream_waits_no_longer_than_the_bound_while_cold_prompts_are_read() -> None:
    """vllm-project/vllm#54919, by the clock: a round is over at most 19 ms after the one before."""
    engine, clock = engine_of(opened(), 19)
    with engine:
        stream = engine.submit(PromptInput(token_ids=[3, 4, 5]), GenerationOptions(ignore_eos=True))
        for _ in range(4):
            stream.next_event(WAIT)
        clock.chunks.clear()
        first = len(clock.rounds)
        cold = [
            engine.submit(PromptInput(token_ids=[token] * 900), GenerationOptions(max_new_tokens=1))
            for token in (7, 8)
        ]
        for handle in cold:
            handle.result(WAIT)
        read = sum(clock.chunks)
        rounds = clock.rounds[first:]
    gaps = [later - earlier for earlier, later in pairwise(rounds)]
    assert read == 1800
    assert max(gaps) == pytest.approx(128 * TOKEN + ROUND)
    assert max(gaps) <= 0.019


def test_a_bound_out_of_reach_ends_the_start() -> None:
    made = opened()
    with pytest.raises(InvalidOption, match=r"max_gap_ms is 5; the smallest gap .* 11\.4 ms"):
        engine_of(made, 5)
    assert made.instance.closed == 1


def test_without_the_option_nothing_is_measured() -> None:
    engine, clock = engine_of(opened(), None)
    with engine:
        assert clock.chunks == []
        assert engine.load_summary().prefill_chunk == 256
        assert "max_gap" not in engine.load_summary().details


def test_the_choice_is_the_same_wherever_it_is_asked_for() -> None:
    """``keep_gap`` alone, with a worker that answers at once."""

    class Asked:
        def ask(self, question):
            return question()

    made = opened()
    program = made.instance.program
    found = keep_gap(19, program, made.instance.frontend, Asked(), Clock(program))
    assert (found["chunk"], program.limits.prefill_chunk) == (128, 128)


def test_a_context_too_short_to_time_is_refused() -> None:
    assert least_context(0) == 24
    made = opened(max_context=23, prefill_chunk=8)
    with pytest.raises(InvalidOption, match="max_context of 23 tokens") as caught:
        engine_of(made, 1000)
    assert "--max-context 24 or more" in caught.value.hint
