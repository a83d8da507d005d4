"""Engines that speculate give what others give: stops, budgets, masks, pauses, reuse."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ninfer_core.contract.checkpoints import Plan, ResumeKind
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.engine.policies_reuse import ReusePolicy
from tests.model.checkpoint_driver import checkpoint_driver, prompt
from tests.model.drafters import (
    BACKENDS,
    drafting,
    followers,
    random_right,
    scripted,
    unscripted,
)
from tests.model.queued_mixes import Wanted, assert_same, engine_over, random_mix, run_mix
from tests.model.scripted_costs import free
from tests.model.snapshot_driver import snapshot_driver
from tests.model.test_parity import prompts

CONTEXT = 160
GREEDY = SamplingParams(temperature=0.0, seed=0)


def answers(case, mix, **sizes) -> list:
    """What plain decoding makes of a mix."""
    with engine_over(case.model, "eager", max_context=CONTEXT, max_concurrency=4, **sizes) as made:
        return run_mix(made[0], mix, spread=False)


def knowing(case, mix, outcomes, most: int, seed: int, backend: str = "mtp"):
    """A backend that knows the outcomes, and drafts more or less of them."""
    known = [
        [*wanted.prompt.token_ids, *outcome[1]]
        for wanted, outcome in zip(mix, outcomes, strict=True)
        if len(outcome) > 2
    ]
    drafter = scripted(backend, followers(*known), random_right(seed, most))
    return free(drafting(case, drafter, most))


@pytest.mark.parametrize(
    ("units", "most", "backend"),
    [
        ("eager", 1, "mtp"),
        ("eager", 3, "mtp"),
        ("eager", 7, "mtp"),
        ("queued", 3, "mtp"),
        ("eager", 7, "dflash"),
        ("queued", 3, "dflash"),
        ("queued", 7, "dflash2"),
    ],
)
def test_random_mixes(build_case, units, most, backend) -> None:
    """Stop strings and ids anywhere in a span, budgets of answers and thoughts, dead ends, masks,
    penalties, log-probabilities, prompts that are scored, cancels."""
    case, sizes = build_case("tied"), {"max_context": CONTEXT, "max_concurrency": 4}
    for seed in range(2):
        mix = random_mix(random.Random(100 * most + seed), CONTEXT, 10)
        calm = [replace(wanted, cancel_after=None) for wanted in mix]
        expected = answers(case, calm)
        draft = knowing(case, calm, expected, most, seed, backend)
        with engine_over(case.model, units, drafting=draft, **sizes) as (engine, program):
            assert_same(calm, run_mix(engine, calm, spread=False), expected)
            assert_same(mix, run_mix(engine, mix, spread=True), expected)
            program.check()
        capacity = program.capacity()
        assert (capacity.available, capacity.resident) == (capacity.total, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_little_room_pauses_and_replays(build_case, backend) -> None:
    case = build_case("tied")
    asked = prompts(41, [40, 33, 50])
    options = GenerationOptions(sampling=GREEDY, max_new_tokens=90, ignore_eos=True)
    mix = [Wanted(PromptInput(token_ids=ids), options) for ids in asked]
    expected = answers(case, mix)
    draft = knowing(case, mix, expected, 3, 1, backend)
    sizes = {"max_context": CONTEXT, "max_concurrency": 3, "kv_tokens": 320}
    with engine_over(case.model, "eager", drafting=draft, **sizes) as (engine, program):
        assert_same(mix, run_mix(engine, mix, spread=False), expected)
        assert engine.stats().pauses > 0
        program.check()


def test_drafts_are_counted_by_place(build_case) -> None:
    case = build_case("tied")
    options = GenerationOptions(sampling=GREEDY, max_new_tokens=21, ignore_eos=True)
    mix = [Wanted(PromptInput(token_ids=prompts(42, [20])[0]), options)]
    expected = answers(case, mix)
    known = [*mix[0].prompt.token_ids, *expected[0][1]]
    right = iter([3, 1, 0, 2, *[3] * 20])
    draft = free(drafting(case, scripted("mtp", followers(known), lambda: next(right)), 3))
    with engine_over(
        case.model, "eager", drafting=draft, max_context=CONTEXT, max_concurrency=1
    ) as (engine, _):
        timings = engine.submit(mix[0].prompt, options).result(60.0).timings
    # The prompt gives one token, the rounds 4, 2, 1, 3, 4, 4; of the two that are left the last
    # round drafts one.
    assert timings.drafted == (7, 6, 6)
    assert timings.accepted == (6, 4, 3)
    assert timings.rounds == 1 + 7


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_answer_after_another_prompt_is_the_same_again(build_case, backend) -> None:
    """A, its next turn, B, A with kept contexts and drafts of the head itself, against an engine
    that keeps as much and drafts nothing."""
    case = build_case("untied")
    first, other = prompts(43, [70])[0], prompts(44, [100])[0]
    options = GenerationOptions(sampling=GREEDY, max_new_tokens=30, ignore_eos=True)
    sizes = {
        "max_context": 256,
        "max_concurrency": 2,
        "prefill_chunk": 64,
        "keep_checkpoints": True,
        "extra_state_slots": 6,
    }

    def ask(draft) -> list:
        policy = ReusePolicy()
        with engine_over(case.model, "eager", policy, drafting=draft, **sizes) as (engine, program):
            results, asked = [], first
            for following in ([5, 6], None, None):
                results.append(engine.submit(PromptInput(token_ids=asked), options).result(60.0))
                asked = [*first, *results[0].token_ids, *following] if following else other
            results.append(engine.submit(PromptInput(token_ids=first), options).result(60.0))
            program.check()
        return results

    plain, drafted = ask(None), ask(drafting(case, unscripted(backend), 3))
    assert [r.token_ids for r in drafted] == [r.token_ids for r in plain]
    assert [r.usage for r in drafted] == [r.usage for r in plain]
    assert drafted[1].usage.cached_tokens > 0
    assert drafted[3].usage.cached_tokens > 0
    assert drafted[3].token_ids == drafted[0].token_ids
    assert sum(drafted[0].timings.drafted) > 0


@pytest.mark.parametrize("units", ["eager", "queued"])
@pytest.mark.parametrize("kind", [ResumeKind.REPLAY, ResumeKind.SNAPSHOT])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pause_between_rounds_changes_nothing(build_case, kind, units, backend) -> None:
    """The drafter's keys, values and hidden row come back to the bit, and drafts with them."""
    case = build_case("tied")
    sampling = SamplingParams(temperature=0.7, seed=9)
    asked, count = prompts(45, [60])[0], 30
    plain = checkpoint_driver(case.model, "eager")
    straight = plain.begin(prompt(asked), sampling=sampling)
    plain.generate(straight, count)
    script = followers([*asked, *straight.tokens])
    for pause_at in (2, 7, 11):
        drafter = scripted(backend, script, random_right(pause_at, 3))
        driver = snapshot_driver(
            case.model, units, drafting=drafting(case, drafter, 3), max_concurrency=1
        )
        row = driver.begin(prompt(asked), sampling=sampling)
        driver.generate(row, pause_at)
        before = driver.state_of(row)
        plan = driver.program.plan_pause(row.handle, kind)
        assert isinstance(plan, Plan)
        resume = driver.pause(row, plan)
        back = driver.adopt(replace(row.request, source=resume))
        back.tokens, back.logprobs = row.tokens, row.logprobs
        driver.prefill(back)
        for ours, theirs in zip(driver.state_of(back), before, strict=True):
            assert ours.equal(theirs)
        while len(back.tokens) < count:
            driver.decode([back])
        assert back.tokens[:count] == straight.tokens[:count]
        assert back.logprobs[:count] == straight.logprobs[:count]
        driver.finish(back)
        driver.program.close()


@pytest.mark.parametrize("units", ["eager", "queued"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpoint_carries_the_drafter(build_case, units, backend) -> None:
    """Its adopter drafts, from another token on, what a sequence from the root drafts."""
    case = build_case("tied")
    for length in (63, 64, 65):
        asked = prompts(46, [length])[0]
        driver = checkpoint_driver(case.model, units, drafting(case, unscripted(backend), 3))
        cut = driver.begin(prompt([*asked, 9, 9, 9], points=(length,)))
        made = driver.prefill_capturing(cut, (length,))[length]
        driver.generate(cut, 12)
        for ending in ([3], [4, 5]):
            fresh = driver.begin(prompt([*asked, *ending], points=(length,)))
            adopted = driver.begin(prompt([*asked, *ending]), made.checkpoint)
            for one in (fresh, adopted):
                driver.generate(one, 8)
            assert adopted.tokens == fresh.tokens
            assert driver.record(adopted).drafts == driver.record(fresh).drafts
            for ours, theirs in zip(driver.state_of(adopted), driver.state_of(fresh), strict=True):
                assert ours.equal(theirs)
            driver.release(fresh)
            driver.release(adopted)
