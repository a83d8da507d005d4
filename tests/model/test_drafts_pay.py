"""Drafts are made where they pay, whatever makes them and however often they are right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ninfer_core.contract.draft_costs import DraftCosts
from ninfer_core.contract.sampling import SamplingParams
from tests.model.checkpoint_driver import checkpoint_driver, prompt
from tests.model.drafters import BACKENDS, drafting, followers, scripted
from tests.model.test_parity import prompts

GREEDY = SamplingParams(temperature=0.0, seed=0)
MOST, COUNT = 3, 140
KNOWN: list[list[int]] = []


def table(backend: str, verify: float, draft: float) -> DraftCosts:
    """Seconds, plain rounds being 1: ``verify`` more for each draft that is verified, and ``draft``
    for each that is made; a block costs its whole width whatever is wanted of it."""
    made = [
        draft * (count if backend == "mtp" else MOST * (count > 0)) for count in range(MOST + 1)
    ]
    return DraftCosts(
        rows=(1,),
        plain=(1.0,),
        verify=tuple((1.0 + verify * count,) for count in range(MOST + 1)),
        draft=tuple((seconds,) for seconds in made),
    )


def spent(case, units: str, backend: str, costs: DraftCosts, right: int) -> float:
    """Seconds for each token by the table, of an answer that is the plain one."""
    asked = prompts(51, [20])[0]
    if not KNOWN:
        plain = checkpoint_driver(case.model, "eager", max_concurrency=1)
        straight = plain.begin(prompt(asked), sampling=GREEDY, max_new_tokens=COUNT)
        KNOWN.append(plain.generate(straight, COUNT))
    known = KNOWN[0]
    drafter = scripted(backend, followers([*asked, *known]), lambda: right)
    draft = replace(drafting(case, drafter, MOST), costs=costs)
    driver = checkpoint_driver(case.model, units, draft, max_concurrency=1)
    row = driver.begin(prompt(asked), sampling=GREEDY, max_new_tokens=COUNT)
    driver.prefill(row)
    record = driver.record(row)
    seconds = costs.draft[len(record.drafts)][0]
    while len(row.tokens) < COUNT:
        verified = len(record.drafts)
        driver.decode([row])
        seconds += costs.verify[verified][0] + costs.draft[len(record.drafts)][0]
    assert row.tokens == known
    driver.program.close()
    return seconds / COUNT


@pytest.mark.parametrize("backend", BACKENDS)
def test_right_drafts_in_rounds_that_cost_more_than_they_bring(build_case, backend) -> None:
    """Every draft is right, as with 97 % acceptance on a small model, where verifying one costs
    more than a plain round: always making them would take 1.4 times as long."""
    costs = table(backend, 1.2, 0.3)
    always = (costs.verify[MOST][0] + costs.draft[MOST][0]) / (MOST + 1)
    assert always == pytest.approx(1.375)
    assert spent(build_case("tied"), "eager", backend, costs, MOST) <= 1.04


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_drafts_in_cheap_rounds(build_case, backend) -> None:
    costs = table(backend, 0.07, 0.13)
    always = costs.verify[MOST][0] + costs.draft[MOST][0]
    assert always == pytest.approx(1.6)
    assert spent(build_case("tied"), "queued", backend, costs, 0) <= 1.04


@pytest.mark.parametrize("backend", BACKENDS)
def test_right_drafts_that_pay_are_all_made(build_case, backend) -> None:
    """Four tokens for 1.6 plain rounds."""
    costs = table(backend, 0.07, 0.13)
    assert spent(build_case("tied"), "queued", backend, costs, MOST) <= 1.1 * 1.6 / 4
