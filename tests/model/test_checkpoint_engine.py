"""Engines that keep checkpoints give, cold and warm, what the same splits give without any."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ninfer_core.contract.frontend import RestoreKind
from ninfer_core.contract.requests import ChatOptions, GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.engine.policies_reuse import ReusePolicy
from tests.model.queued_mixes import assert_same, engine_over, random_mix, run_mix

SIZES = {
    "max_context": 192,
    "max_concurrency": 4,
    "keep_checkpoints": True,
    "extra_state_slots": 6,
}


@pytest.mark.parametrize("units", ["eager", "queued", "late"])
@pytest.mark.parametrize("sizes", [{}, {"kv_tokens": 512, "extra_state_slots": 2}])
def test_warm_requests_give_what_cold_ones_give(build_case, units, sizes) -> None:
    """Prompts recur whole, so that every source stands where the cold prompt was split too."""
    model = build_case("tied").model
    with (
        engine_over(model, "eager", **SIZES) as (oracle, _),
        engine_over(model, units, ReusePolicy(), **{**SIZES, **sizes}) as (engine, program),
    ):
        for seed in range(2):
            mix = [replace(w, cancel_after=None) for w in random_mix(random.Random(seed), 192, 8)]
            expected = run_mix(oracle, mix, spread=False)
            for _ in range(2):
                assert_same(mix, run_mix(engine, mix, spread=False), expected)
        assert engine.stats().cached_tokens > 0
        program.check()
    capacity = program.capacity()
    assert (capacity.available, capacity.resident) == (capacity.total, 0)


@pytest.mark.parametrize("units", ["eager", "queued"])
def test_the_next_turn_starts_where_the_answer_ended(build_case, units) -> None:
    sampling = SamplingParams(temperature=0.8, seed=3)
    options = GenerationOptions(sampling=sampling, max_new_tokens=80, ignore_eos=True)
    asked = [(5 * i) % 300 for i in range(70)]
    with engine_over(build_case("untied").model, units, ReusePolicy(), **SIZES) as (engine, _):
        first = engine.submit(PromptInput(token_ids=asked), options).result(60.0)
        following = [*asked, *first.token_ids, 4, 5, 6]
        second = engine.submit(PromptInput(token_ids=following), options).result(60.0)
        again = engine.submit(PromptInput(token_ids=following), options).result(60.0)
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens == 70 + 80 - 1
    assert again.usage.cached_tokens == second.usage.cached_tokens
    assert again.token_ids == second.token_ids


@pytest.mark.parametrize("host_bytes", [0, 1 << 20])
@pytest.mark.parametrize("length", [130, 40])
def test_points_that_free_room_only_together_make_way(build_case, host_bytes, length) -> None:
    """Three explicit points in the second page: none of them frees it alone. The second request
    lacks room at its start, or when the rest is its own."""
    points = [(at, RestoreKind.EXPLICIT.value) for at in (70, 75, 80)]
    marked = PromptInput(
        token_ids=[(5 * i) % 300 + 3 for i in range(100)],
        chat=ChatOptions(template_kwargs={"points": points}),
    )
    other = PromptInput(token_ids=[(7 * i) % 300 + 3 for i in range(length)])
    sizes = {**SIZES, "max_concurrency": 1, "kv_tokens": 192, "host_bytes": host_bytes}
    whole = GenerationOptions(max_new_tokens=192 - length, ignore_eos=True)
    with engine_over(build_case("tied").model, "eager", ReusePolicy(), **sizes) as (engine, _):
        engine.submit(marked, GenerationOptions(max_new_tokens=1, ignore_eos=True)).result(60.0)
        assert engine.stats().checkpoints == 3
        assert len(engine.submit(other, whole).result(60.0).token_ids) == 192 - length


@pytest.mark.parametrize("host_bytes", [0, 1 << 20])
@pytest.mark.parametrize("units", ["eager", "late"])
def test_they_make_way_beside_a_resident_that_stays(build_case, units, host_bytes) -> None:
    """Two pages of five are held by three points together, a third by a stream."""
    points = [(at, RestoreKind.EXPLICIT.value) for at in (70, 75, 80)]
    marked = PromptInput(
        token_ids=[(5 * i) % 300 + 3 for i in range(100)],
        chat=ChatOptions(template_kwargs={"points": points}),
    )
    other = PromptInput(token_ids=[(7 * i) % 300 + 3 for i in range(140)])
    sizes = {**SIZES, "max_concurrency": 2, "kv_tokens": 320, "host_bytes": host_bytes}
    with engine_over(build_case("tied").model, units, ReusePolicy(), **sizes) as (engine, program):
        engine.submit(marked, GenerationOptions(max_new_tokens=1, ignore_eos=True)).result(60.0)
        assert engine.stats().checkpoints == 3
        short = GenerationOptions(max_new_tokens=60, ignore_eos=True)
        stream = engine.submit(PromptInput(token_ids=[4, 5, 6]), short)
        stream.next_event(60.0)
        few = GenerationOptions(max_new_tokens=4, ignore_eos=True)
        assert len(engine.submit(other, few).result(60.0).token_ids) == 4
        assert engine.stats().running == 1, "it waited for the stream to end"
        assert len(stream.result(60.0).token_ids) == 60
        stats = engine.stats()
        assert (stats.pauses, stats.reclaimed) == (0, 3)
        engine._lifecycle.ask(program.check)
