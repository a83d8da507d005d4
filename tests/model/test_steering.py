"""The number of drafts follows a request's own acceptance, down to none, and comes back."""

from __future__ import annotations

import pytest

from ninfer_core.contract.sampling import SamplingParams
from ninfer_qwen3_5.program.steering import PROBE_EVERY, ROW_COST, Steering
from tests.model.checkpoint_driver import checkpoint_driver, prompt
from tests.model.drafters import ScriptedDrafter, drafting, followers
from tests.model.test_parity import prompts

GREEDY = SamplingParams(temperature=0.0, seed=0)


def settled(steering: Steering, accepted: list[int], rounds: int = 400) -> int:
    """What is wanted after many rounds that take turns in how much they accept."""
    for number in range(rounds):
        drafted = steering.wanted() or 1
        steering.learn(drafted, min(drafted, accepted[number % len(accepted)]))
    return steering.wanted()


def best(chances: list[float]) -> int:
    """By hand: the most tokens for what a round costs."""
    gains, tokens, chance = [1.0], 1.0, 1.0
    for count, rate in enumerate(chances, 1):
        chance *= rate
        tokens += chance
        gains.append(tokens / (1 + ROW_COST * count))
    return gains.index(max(gains))


@pytest.mark.parametrize(
    ("accepted", "chances"),
    [([3], [1, 1, 1]), ([0], [0, 1, 1]), ([1, 3], [1, 0.5, 1]), ([0, 1], [0.5, 0.02, 1])],
)
def test_as_many_as_pay(accepted, chances) -> None:
    assert settled(Steering(3), accepted) == best(chances)


def test_none_is_tried_again_once_in_a_while() -> None:
    steering = Steering(3)
    assert settled(steering, [0]) == 0
    wanted = []
    for _ in range(2 * PROBE_EVERY + 2):
        wanted.append(steering.wanted())
        steering.learn(wanted[-1], 0)
    assert wanted.count(1) == 2
    assert set(wanted) == {0, 1}
    steering = Steering(3)
    settled(steering, [0])
    assert settled(steering, [3]) == 3


@pytest.mark.parametrize("units", ["eager", "queued"])
def test_bad_drafts_cease_and_answers_stay(build_case, units) -> None:
    case, count = build_case("tied"), 130
    asked = prompts(51, [20])[0]
    plain = checkpoint_driver(case.model, "eager")
    straight = plain.begin(prompt(asked), sampling=GREEDY, max_new_tokens=count)
    plain.generate(straight, count)
    drafter = ScriptedDrafter(followers([*asked, *straight.tokens]), lambda: 0)
    draft = drafting(case, drafter, 3)
    driver = checkpoint_driver(case.model, units, draft, max_concurrency=2)
    row = driver.begin(prompt(asked), sampling=GREEDY, max_new_tokens=count)
    driver.prefill(row)
    offered = []
    while len(row.tokens) < count:
        offered.append(len(driver.record(row).drafts))
        driver.decode([row])
    assert row.tokens == straight.tokens
    assert row.logprobs == straight.logprobs
    assert offered[0] == 3
    assert offered.count(0) > 60
    assert 0 < offered[60:].count(1) < 4
