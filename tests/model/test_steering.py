"""The number of drafts follows a request's own acceptance, down to none, and comes back."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ninfer_core.contract.draft_costs import DraftCosts
from ninfer_core.contract.sampling import SamplingParams
from ninfer_qwen3_5.program.draft_prices import LEAST_PATIENCE, Prices
from ninfer_qwen3_5.program.steering import CREDIT, SHARE, Steering
from tests.model.checkpoint_driver import checkpoint_driver, prompt
from tests.model.drafters import ScriptedDrafter, drafting, followers
from tests.model.scripted_costs import costs
from tests.model.test_parity import prompts

GREEDY = SamplingParams(temperature=0.0, seed=0)
CHAIN = costs(3, verify=0.07, draft=0.13, width=0.05)
BLOCK = DraftCosts(
    rows=(1,),
    plain=(2.0,),
    verify=tuple((2.0 + 0.1 * count,) for count in range(8)),
    draft=((0.0,), *((0.4,),) * 7),
)
TABLES = {"chain": CHAIN, "block": BLOCK, "cheap": costs(7, verify=0.02, draft=0.03)}


def spent(table: DraftCosts, chances: list[float], tokens: int, seed: int, fixed: int = -1):
    """Seconds of making ``tokens``: rounds verify what the round before made, and each place is
    accepted by chance. With ``fixed`` so many drafts are always made."""
    draw, most = random.Random(seed), len(table.verify) - 1
    steering = Steering(most, Prices(table, 1))
    made = steering.wanted() if fixed < 0 else fixed
    steering.learn(1, 0, 0)
    seconds, count = table.draft[made][0], 1
    while count < tokens:
        wanted = steering.wanted() if fixed < 0 else fixed
        seconds += table.verify[made][0] if made or wanted else table.plain[0]
        seconds += table.draft[wanted][0]
        taken = 0
        while taken < made and draw.random() < chances[taken]:
            taken += 1
        steering.learn(1, made, taken)
        made, count = wanted, count + taken + 1
    return seconds * tokens / count


def mean(table: DraftCosts, chances: list[float], tokens: int, fixed: int = -1) -> float:
    """In plain rounds for each token."""
    times = [spent(table, chances, tokens, seed, fixed) for seed in range(16)]
    return sum(times) / len(times) / tokens / table.plain[0]


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_drafts_that_are_never_right_cost_little(table) -> None:
    """At most 3 % of a plain answer, by a table that says what drafts really cost."""
    most = len(table.verify) - 1
    assert mean(table, [0.0] * most, 400) <= 1.03
    assert mean(table, [0.0] * most, 1500) <= 1.02
    assert mean(table, [0.0] * most, 400, most) > 1.2


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("chance", [0.2, 0.5, 0.9])
def test_what_is_spent_is_near_the_best_fixed_number(table, chance) -> None:
    most = len(table.verify) - 1
    chances = [chance] * most
    best = min(mean(table, chances, 400, fixed) for fixed in range(most + 1))
    assert mean(table, chances, 400) <= 1.06 * best


def test_no_acceptance_makes_a_request_lose_more_than_its_share() -> None:
    """Also one that is right until it is trusted, and wrong from then on, again and again."""
    prices = Prices(CHAIN, 1)
    steering, lost, tokens, made = Steering(3, prices), 0.0, 0, 0
    for _ in range(3000):
        wanted = steering.wanted()
        taken = made if made == 1 else 0
        lost += prices.by_drafts(1)[made] - taken - 1
        tokens += taken + 1
        steering.learn(1, made, taken)
        made = wanted
        assert lost <= CREDIT + SHARE * tokens + 3 * (prices.by_drafts(1)[3] - 1)


def test_what_was_found_worthless_is_tried_again() -> None:
    steering = Steering(3, Prices(CHAIN, 1))
    wanted = []
    for _ in range(200):
        wanted.append(steering.wanted())
        steering.learn(1, wanted[-1], 0)
    assert wanted[0] == 3
    assert 2 <= wanted[20:].count(1) <= 180 // LEAST_PATIENCE
    assert wanted[20:].count(1) + wanted[20:].count(0) == 180
    for _ in range(200):
        made = steering.wanted()
        steering.learn(1, made, made)
    assert steering.wanted() == 3


def test_a_place_that_is_bad_is_left_out_and_those_before_it_stay() -> None:
    steering = Steering(3, Prices(CHAIN, 1))
    wanted = []
    for _ in range(300):
        wanted.append(steering.wanted())
        steering.learn(1, wanted[-1], min(wanted[-1], 1))
    assert wanted[50:].count(1) > 230
    assert set(wanted[50:]) == {1, 2}


def test_it_decides_alike_whether_a_round_is_read_before_the_next_or_behind_it() -> None:
    draw = random.Random(3)
    taken = [draw.randint(0, 3) * (draw.random() < 0.5) for _ in range(400)]
    early, late = Steering(3, Prices(CHAIN, 1)), Steering(3, Prices(CHAIN, 1))
    made, ahead = [early.wanted()], [late.wanted()]
    for round_, count in enumerate(taken):
        early.learn(1, made[-1], min(made[-1], count))
        made.append(early.wanted())
        before = round_ % 3 != 0
        if before:
            ahead.append(late.wanted(behind=1))
        late.learn(1, made[-2], min(made[-2], count))
        if not before:
            ahead.append(late.wanted())
    assert made == ahead
    assert len(set(made)) > 2


def test_prices_between_numbers_of_rows_that_were_measured() -> None:
    table = DraftCosts(
        rows=(1, 4),
        plain=(1.0, 2.0),
        verify=((1.0, 2.0), (1.5, 4.0)),
        draft=((0.0, 0.0), (0.5, 1.0)),
    )
    prices = Prices(table, 8)
    assert prices.by_drafts(1) == (1.0, 2.0)
    assert prices.by_drafts(4) == (1.0, 2.5)
    assert prices.by_drafts(2)[1] == pytest.approx((1.5 + 2.5 / 3 + 0.5 + 0.5 / 3) / (1 + 1 / 3))
    assert prices.by_drafts(8) == prices.by_drafts(4)
    cheaper = replace(table, verify=((1.0, 2.0), (0.2, 0.2)), draft=((0.0, 0.0), (0.1, 0.1)))
    assert Prices(cheaper, 1).by_drafts(1) == (1.0, 1.0)


@pytest.mark.parametrize("units", ["eager", "queued"])
def test_bad_drafts_cease_and_answers_stay(build_case, units) -> None:
    case, count = build_case("tied"), 130
    asked = prompts(51, [20])[0]
    plain = checkpoint_driver(case.model, "eager")
    straight = plain.begin(prompt(asked), sampling=GREEDY, max_new_tokens=count)
    plain.generate(straight, count)
    drafter = ScriptedDrafter(followers([*asked, *straight.tokens]), lambda: 0)
    draft = replace(drafting(case, drafter, 3), costs=CHAIN)
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
    assert offered.count(0) > 100
    assert 1 <= offered[20:].count(1) <= 110 // LEAST_PATIENCE
