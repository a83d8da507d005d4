"""Random mixes of requests over queued units, on time and late, give what eager units give."""

from __future__ import annotations

import random

import pytest

from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from tests.model.queued_mixes import (
    VOCAB,
    Wanted,
    assert_same,
    engine_over,
    random_mix,
    run_mix,
)

ROOMY = {"max_context": 192, "max_concurrency": 4}
SCARCE = {"max_context": 128, "max_concurrency": 4, "kv_tokens": 256}
ALONE = {"max_context": 130, "max_concurrency": 1}


def assert_nothing_is_held(engine, program) -> None:
    assert engine.drain(60.0)
    memory = engine.memory_summary()
    assert memory.pages_free == memory.pages_total
    assert memory.state_slots_free == memory.state_slots_total
    program.check()


@pytest.mark.parametrize("units", ["queued", "late"])
@pytest.mark.parametrize("sizes", [ROOMY, SCARCE, ALONE], ids=["roomy", "scarce", "alone"])
def test_mixes_give_what_eager_units_give(build_case, units, sizes) -> None:
    model = build_case("tied").model
    ample = {name: size for name, size in sizes.items() if name != "kv_tokens"}
    with (
        engine_over(model, "eager", **ample) as (oracle, _),
        engine_over(model, units, **sizes) as (engine, program),
    ):
        for seed in range(2):
            mix = random_mix(random.Random(seed), sizes["max_context"], 8)
            expected = run_mix(oracle, mix, spread=False)
            assert_same(mix, run_mix(engine, mix, spread=True), expected)
        assert_nothing_is_held(engine, program)


@pytest.mark.parametrize("units", ["queued", "late"])
def test_pauses_under_few_pages_change_no_bit(build_case, units) -> None:
    """Sixteen requests on the pages of three; penalties count what came before a pause."""
    model, random_ = build_case("tied").model, random.Random(5)
    mix = []
    for index in range(16):
        tokens = [random_.randrange(3, VOCAB) for _ in range(random_.randint(20, 70))]
        sampling = SamplingParams(
            temperature=(index % 3) * 0.6,
            seed=(1 << 64) - 1 - index,
            frequency_penalty=0.3 * (index % 2),
            repetition_penalty=1.1,
        )
        options = GenerationOptions(
            sampling=sampling, max_new_tokens=50, ignore_eos=True, logprobs=2, prompt_logprobs=1
        )
        mix.append(Wanted(PromptInput(token_ids=tokens), options))
    scarce = {"max_context": 128, "max_concurrency": 4, "kv_tokens": 6 * 64}
    with (
        engine_over(model, "eager", max_context=128, max_concurrency=4) as (oracle, _),
        engine_over(model, units, **scarce) as (engine, program),
    ):
        expected = run_mix(oracle, mix, spread=False)
        assert_same(mix, run_mix(engine, mix, spread=False), expected)
        assert engine.stats().pauses > 0
        assert_nothing_is_held(engine, program)
