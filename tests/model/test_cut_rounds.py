"""Rounds of which the Frontend takes a part and forces tokens in place of the rest; pages of rounds
in flight; drafts at the end of a budget."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.frontend import ColumnState
from ninfer_core.contract.resources import PAGE_TOKENS
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.contract.units import DecodeRow, Disposition, PendingBatch, RowDecision, RowStatus
from ninfer_core.testing.fake_frontend import FakeSession
from tests.model.checkpoint_driver import checkpoint_driver, prompt
from tests.model.drafters import drafting, followers, scripted
from tests.model.queued_mixes import assert_same, engine_over, random_mix, run_mix
from tests.model.scripted_costs import free
from tests.model.test_parity import prompts
from tests.model.test_speculation_engine import CONTEXT, answers, knowing

DRAWN = SamplingParams(
    temperature=0.9, top_k=40, seed=11, repetition_penalty=1.2, frequency_penalty=0.3
)
SIZES = {"max_context": 192, "max_concurrency": 1, "extra_state_slots": 2}
FORCED = (17, 18, 19, 20)
COUNT = 24
VOID = RowDecision(disposition=Disposition.VOID)


def forcing(driver, asked, kept: int):
    """Plain decoding: ``kept`` tokens, then those that are forced, then up to ``COUNT``."""
    row = driver.begin(prompt(asked), sampling=DRAWN, max_new_tokens=COUNT)
    driver.generate(row, kept)
    driver.force(row, FORCED)
    while len(row.tokens) < COUNT:
        driver.decode([row])
    return row


def accepted(count: int) -> RowDecision:
    return RowDecision(disposition=Disposition.ACCEPT, accepted=count)


class Flight:
    """One sequence whose rounds are launched by hand, alone on its device."""

    def __init__(self, case, units, drafter, asked, **given: Any) -> None:
        draft = free(drafting(case, drafter, 3))
        self.driver = checkpoint_driver(case.model, units, draft, **SIZES)
        self.program = self.driver.program
        self.row = self.driver.begin(prompt(asked), max_new_tokens=COUNT, **given)
        self.driver.prefill(self.row)

    def launch(self, behind: Any = None, masks: Any = None) -> Any:
        permit = self.driver.permit(self.row)
        one = DecodeRow(sequence=self.row.handle, permit=permit, masks=masks)
        return self.program.launch_decode([one], ahead_of=behind)


@pytest.mark.parametrize(
    ("units", "backend", "kept"),
    [("eager", "mtp", 2), ("late", "mtp", 1), ("late", "mtp", 3), ("queued", "dflash", 2)],
)
def test_a_sequence_goes_on_from_within_a_round(build_case, units, backend, kept) -> None:
    """With a round in flight behind, where there can be one; counts of penalties, state and keys
    too."""
    case, asked = build_case("tied"), prompts(71, [61])[0]
    plain = checkpoint_driver(case.model, "eager")
    straight = forcing(plain, asked, 1 + kept)
    other = plain.begin(prompt(asked), sampling=DRAWN, max_new_tokens=COUNT)
    known = [*asked, *plain.generate(other, 8)]
    script = followers(known)
    drafter = scripted(backend, lambda *place: script(*place), lambda: 3)
    flight = Flight(case, units, drafter, asked, sampling=DRAWN)
    driver, program, row = flight.driver, flight.program, flight.row
    first = flight.launch()
    first.finish()
    second = None if units == "eager" else flight.launch(first)
    pending = first.collect()
    (made,) = pending.rows
    assert list(made.token_ids) == known[len(asked) + 1 :][:4]
    program.commit(pending, [accepted(kept)])
    row.tokens += made.token_ids[:kept]
    row.logprobs += made.logprobs[:kept]
    if second is not None:
        late = second.collect()
        with pytest.raises(EngineFailure, match="nobody accepted"):
            program._settlement.commit(late.detail, late.rows, [accepted(1)])
        # What such a round gave, nonsense too, is nobody's.
        rows = tuple(replace(made, status=RowStatus.NONFINITE) for made in late.rows)
        program.commit(PendingBatch(late.kind, rows, detail=late.detail), [VOID])
        assert not driver.record(row).health.broken
    assert driver.record(row).drafts == ()
    driver.force(row, FORCED)
    script = followers([*asked, *straight.tokens])
    while len(row.tokens) < COUNT:
        driver.decode([row])
    assert row.tokens == straight.tokens
    assert row.logprobs == straight.logprobs
    for ours, theirs in zip(driver.state_of(row), plain.state_of(straight), strict=False):
        assert ours.equal(theirs)
    program.close()


@pytest.mark.parametrize(
    ("units", "most", "backend"),
    [("eager", 3, "mtp"), ("late", 3, "mtp"), ("queued", 5, "dflash2")],
)
def test_budgets_that_no_permit_knew_of(build_case, units, most, backend, monkeypatch) -> None:
    """As with a thought that the model opens within a round. Beside stops, masks, penalties."""
    monkeypatch.setattr(FakeSession, "thinking_room", None)
    monkeypatch.setattr(FakeSession, "cuts", True)
    case, sizes = build_case("tied"), {"max_context": CONTEXT, "max_concurrency": 4}
    rng = random.Random(most)
    mix = random_mix(rng, CONTEXT, 12)
    mix = [
        replace(
            wanted,
            cancel_after=None,
            options=replace(wanted.options, thinking_budget=rng.randint(2, 25)),
        )
        for wanted in mix
    ]
    expected = answers(case, mix)
    draft = knowing(case, mix, expected, most, 5, backend)
    with engine_over(case.model, units, drafting=draft, **sizes) as (engine, program):
        assert_same(mix, run_mix(engine, mix, spread=True), expected)
        program.check()
    capacity = program.capacity()
    assert (capacity.available, capacity.resident) == (capacity.total, 0)


@pytest.mark.parametrize("backend", ["mtp", "dflash"])
def test_pages_of_a_round_in_flight_stay_its_own(build_case, backend) -> None:
    """The round ahead drafts on a page that the round before it was granted."""
    asked, most = prompts(72, [PAGE_TOKENS - 15])[0], 3
    flight = Flight(build_case("tied"), "late", scripted(backend, lambda *_: 1, lambda: 0), asked)
    driver, program = flight.driver, flight.program
    record, spaces = driver.record(flight.row), program._stores.context.spaces["main"]

    def pages() -> int:
        return len(list(spaces.page_ids(record.history.spaces["main"])))

    flying, early = flight.launch(), 0
    for _ in range(16):
        behind = flight.launch(flying)
        (work,) = behind.works
        # It may run up to K + 1 tokens and drafts at K + 1 columns behind them.
        runs, drafts = work.start + work.executed, work.start + work.executed + 1 + most
        early += runs <= PAGE_TOKENS < drafts
        pending = flying.collect()
        program.commit(pending, [accepted(1)])
        program.check()
        assert pages() >= -(-drafts // PAGE_TOKENS), work
        flying = behind
    program.commit(flying.collect(), [accepted(1)])
    assert early
    assert pages() == -(-record.frontier // PAGE_TOKENS)
    program.close()


class Anything:
    """A constraint that allows every token."""

    def fill(self, drafts, out):
        out[:] = 0xFFFFFFFF
        return (ColumnState.READY,) * (len(drafts) + 1)


class TwoRounds:
    """Steering that has one plain round and then as many drafts as there may be."""

    def __init__(self) -> None:
        self.asked = 0

    def wanted(self, rows: int = 1, behind: int = 0) -> int:
        return 3 if behind else 0

    def learn(self, rows: int, drafted: int, accepted: int) -> None:
        pass


@pytest.mark.parametrize(("backend", "left"), [("mtp", 4), ("mtp", 5), ("dflash", 4)])
def test_a_masked_round_behind_a_plain_one_makes_every_draft_that_it_names(
    build_case, backend, left
) -> None:
    """It is drawn once the plain round is settled, which by then has taken one of the ``left``
    tokens of the budget: drafts are left - 3, and none of them is from an earlier round."""
    case, asked = build_case("tied"), prompts(73, [21])[0]
    plain = checkpoint_driver(case.model, "eager")
    straight = plain.begin(prompt(asked), max_new_tokens=COUNT)
    known = [*asked, *plain.generate(straight, COUNT)]
    right = 0
    flight = Flight(case, "late", scripted(backend, followers(known), lambda: right), asked)
    driver, row = flight.driver, flight.row
    while len(row.tokens) < COUNT - left:
        driver.decode([row])
    record = driver.record(row)
    record.drafts, record.steering, right = (), TwoRounds(), 3
    assert record.remaining == left
    first = flight.launch()
    first.finish()
    second = flight.launch(first, Anything())
    for launched in (first, second):
        launched.finish()
        pending = launched.collect()
        flight.program.commit(pending, [accepted(1)])
        row.tokens += pending.rows[0].token_ids
    assert row.tokens == known[len(asked) :][: COUNT - left + 2]
    behind = len(asked) + len(row.tokens)
    assert list(record.drafts) == known[behind:][: left - 3]
    flight.program.close()
