"""Permits of a Program with few pages and slots: refusals hold nothing, pauses free everything."""

from __future__ import annotations

import dataclasses

import pytest

from ninfer_core.contract.checkpoints import OutputRules, Plan, ResumeKind
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import NeverFits, Shortfall
from ninfer_core.contract.units import (
    ControlRow,
    DecodeRow,
    Disposition,
    PendingBatch,
    RowDecision,
    UnitKind,
    UnitNeed,
)


def test_a_refused_permit_names_the_axis_and_holds_nothing(build_case) -> None:
    driver = build_case("tied").driver(max_context=128, max_concurrency=2, kv_tokens=128)
    first, second = driver.bind(range(64), lane=0), driver.bind(range(64), lane=1)
    driver.prefill(first)
    driver.decode([first])
    before = driver.program.capacity()
    need = driver.program.unit_need(second.handle)
    assert driver.program.reserve(second.handle, need) == Shortfall("main", 1, 0)
    assert driver.program.capacity() == before
    driver.program.check()
    driver.finish(first)
    driver.prefill(second)
    assert len(second.tokens) == 1


def test_a_need_beyond_the_pool_never_fits(build_case) -> None:
    driver = build_case("tied").driver(max_context=128, max_concurrency=1, kv_tokens=128)
    row = driver.bind(range(10))
    answer = driver.program.reserve(row.handle, UnitNeed(UnitKind.PREFILL, 1000, True))
    assert answer == NeverFits("main", 16, 2)


def test_a_pause_frees_all_and_a_snapshot_is_refused_without_a_host_tier(build_case) -> None:
    driver = build_case("tied").driver()
    row = driver.bind(range(70))
    driver.generate(row, 3)
    assert isinstance(driver.program.plan_pause(row.handle, ResumeKind.SNAPSHOT), NeverFits)
    plan = driver.program.plan_pause(row.handle, ResumeKind.REPLAY)
    assert isinstance(plan, Plan)
    resume = driver.pause(row, plan)
    assert (resume.frontier, resume.ledger) == (72, 73)
    assert driver.program.capacity().available == driver.program.capacity().total
    driver.program.discard(resume)
    with pytest.raises(EngineFailure, match="stale"):
        driver.program.discard(resume)


def test_aborted_and_cancelled_rounds_leave_the_sequence_where_it_was(build_case) -> None:
    case = build_case("untied")
    driver, straight = case.driver(), case.driver()
    expected = straight.generate(straight.bind(range(40)), 12)
    row = driver.bind(range(40))
    driver.generate(row, 4)
    for settle in (driver.program.abort, lambda batch: _cancel(driver.program, batch)):
        rows = [DecodeRow(sequence=row.handle, permit=driver.permit(row))]
        launched = driver.program.launch_decode(rows)
        launched.finish()
        batch = launched.collect()
        assert isinstance(batch, PendingBatch)
        settle(batch)
        with pytest.raises(EngineFailure):
            settle(batch)
        driver.program.check()
    assert driver.generate(row, 12) == expected


def _cancel(program, batch: PendingBatch) -> None:
    program.commit(batch, [RowDecision(disposition=Disposition.CANCELLED)] * len(batch.rows))


def test_forced_tokens_continue_as_if_they_had_been_in_the_prompt(build_case) -> None:
    case = build_case("wide_values")
    driver = case.driver()
    row = driver.bind(range(30), rules=OutputRules(max_new_tokens=64))
    driver.generate(row, 2)
    forced = (7, 8, 9)
    launched = driver.program.launch_control(
        [ControlRow(sequence=row.handle, permit=driver.permit(row, 3), token_ids=forced)]
    )
    launched.finish()
    batch = launched.collect()
    assert isinstance(batch, PendingBatch)
    assert batch.rows[0].token_ids == forced
    driver.program.commit(batch, [RowDecision(disposition=Disposition.ACCEPT, accepted=3)])
    continued = driver.generate(row, 8)[2:]
    prompt = [*range(30), *row.tokens[:2], *forced]
    fresh = driver.bind(prompt, lane=1)
    assert driver.generate(fresh, 6) == continued


def test_a_decision_that_breaks_the_rules_changes_nothing(build_case) -> None:
    driver = build_case("tied").driver()
    row = driver.bind(range(20))
    driver.prefill(row)
    rows = [DecodeRow(sequence=row.handle, permit=driver.permit(row))]
    launched = driver.program.launch_decode(rows)
    batch = launched.collect()
    with pytest.raises(EngineFailure, match="accepted"):
        driver.program.commit(batch, [RowDecision(disposition=Disposition.ACCEPT, accepted=2)])


def test_a_resume_holds_its_pages_from_the_start(build_case) -> None:
    case = build_case("untied")
    driver = case.driver(max_context=256, max_concurrency=2, kv_tokens=256)
    row = driver.bind(range(100), lane=0)
    driver.generate(row, 30)
    plan = driver.program.plan_pause(row.handle, ResumeKind.REPLAY)
    assert isinstance(plan, Plan)
    resume = driver.pause(row, plan)
    assert resume.frontier == 129
    other = driver.bind(range(100), lane=1)
    driver.prefill(other)
    again = dataclasses.replace(row.request, source=resume)
    assert driver.program.plan_bind(again) == Shortfall("main", 3, 2)
    driver.finish(other)
    resumed = driver.adopt(again)
    driver.chunk(resumed)
    assert driver.program.capacity().available.pages["main"] == 1
    driver.program.check()
    driver.prefill(resumed)
    driver.decode([resumed])
    assert driver.program.capacity().available.pages["main"] == 1


def test_close_releases_everything_and_may_be_repeated(build_case) -> None:
    driver = build_case("tied").driver()
    row, paused = driver.bind(range(70), lane=0), driver.bind(range(20), lane=1)
    driver.generate(row, 2)
    driver.generate(paused, 2)
    plan = driver.program.plan_pause(paused.handle, ResumeKind.REPLAY)
    assert isinstance(plan, Plan)
    resume = driver.pause(paused, plan)
    for _ in range(2):
        driver.program.close()
        capacity = driver.program.capacity()
        assert (capacity.available, capacity.resident) == (capacity.total, 0)
    driver.program.check()
    with pytest.raises(EngineFailure, match="stale"):
        driver.program.unit_need(row.handle)
    with pytest.raises(EngineFailure, match="stale"):
        driver.program.discard(resume)
