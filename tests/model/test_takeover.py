"""A checkpoint that nobody else holds becomes a sequence in place, without a copy."""

from __future__ import annotations

import dataclasses

import pytest

from ninfer_core.contract.checkpoints import Aborted, CheckpointAction, Plan
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import NeverFits, Shortfall
from tests.model.checkpoint_driver import GREEDY, kept_end, prompt
from tests.model.snapshot_driver import (
    COUNT,
    DRAWN,
    KINDS,
    assert_empty,
    snapshot_drivers,
    tokens,
)
from tests.model.test_demote import answer, begin_demote, demote, same


@pytest.fixture
def drivers(build_case):
    with snapshot_drivers(build_case) as build:
        yield build


def taking_over(driver, prepared, ref, lane=1):
    return dataclasses.replace(
        driver.request(prepared, ref, sampling=DRAWN, lane=lane), consume=True
    )


def taken_over(driver, prepared, ref):
    row = driver.adopt(taking_over(driver, prepared, ref))
    beginning = driver.state_of(row)
    driver.generate(row, COUNT)
    driver.release(row)
    return beginning, row.tokens, row.logprobs


@pytest.mark.parametrize(("units", "lag"), KINDS)
@pytest.mark.parametrize("length", [64, 100])
def test_it_goes_on_as_a_copy_would(drivers, units, lag, length) -> None:
    driver = drivers(units, lag)
    ids = tokens(6, length)
    kept = kept_end(driver, prompt(ids)).checkpoint
    prepared = prompt([*ids, 4, 5])
    expected = answer(driver, prepared, kept)
    demote(driver, kept, drop=False)
    assert same(taken_over(driver, prepared, kept), expected)
    with pytest.raises(EngineFailure, match="stale"):
        driver.program.facts(kept)
    assert_empty(driver)


def test_it_needs_one_slot_and_one_page_less(drivers) -> None:
    driver = drivers(max_concurrency=1, extra_state_slots=1, host_bytes=0, kv_tokens=512)
    ids = tokens(6, 100)
    row = driver.begin(prompt(ids, [40]), sampling=GREEDY)
    point = driver.prefill_capturing(row, [40])[40].checkpoint
    end = driver.keep(row).checkpoint
    prepared = prompt([*ids, 4, 5])
    program = driver.program
    copied = program.plan_bind(driver.request(prepared, end))
    assert copied == Shortfall("state_slots", 2, 1)
    plan = program.plan_bind(taking_over(driver, prepared, end, lane=0))
    assert isinstance(plan, Plan)
    assert (plan.need.state_slots, plan.need.pages["main"]) == (1, 0)
    bound = driver.settle(program.begin(plan))
    assert (bound.reused_tokens, bound.moved_bytes, bound.retired) == (100, 0, (end,))
    assert program.facts(point).frontier == 40, "what shares its pages stays"
    program.finish(bound.sequence, keep=False)
    driver.drop(point, CheckpointAction.DELETE)
    assert_empty(driver)


def test_a_page_that_a_deeper_point_needs_further_is_copied(drivers) -> None:
    driver = drivers()
    ids = tokens(6, 100)
    row = driver.begin(prompt(ids, [80]), sampling=GREEDY)
    point = driver.prefill_capturing(row, [80])[80].checkpoint
    end = driver.keep(row).checkpoint
    later, deeper = prompt([*ids[:80], 4, 5]), prompt([*ids, 4, 5])
    expected = answer(driver, later, point), answer(driver, deeper, end)
    assert same(taken_over(driver, later, point), expected[0])
    assert same(answer(driver, deeper, end), expected[1])


def test_what_lies_on_the_host_alone_or_is_on_its_way_is_not_taken_over(drivers) -> None:
    driver = drivers("queued", 4)
    ids = tokens(6, 100)
    kept = kept_end(driver, prompt(ids)).checkpoint
    request = taking_over(driver, prompt([*ids, 4]), kept)
    moving = begin_demote(driver, kept)
    assert driver.step(moving) is None
    refused = NeverFits("sole holders of the checkpoint", 1, 0)
    assert driver.program.plan_bind(request) == refused
    driver.settle(moving)
    assert isinstance(driver.program.plan_bind(request), Plan)
    driver.drop(kept, CheckpointAction.DROP_DEVICE)
    assert driver.program.plan_bind(request) == refused


def test_a_cancelled_takeover_leaves_the_checkpoint(drivers) -> None:
    driver = drivers()
    ids = tokens(6, 100)
    kept = kept_end(driver, prompt(ids)).checkpoint
    prepared = prompt([*ids, 4])
    expected = answer(driver, prepared, kept)
    before = driver.program.capacity()
    transaction = driver.program.begin(
        driver.program.plan_bind(taking_over(driver, prepared, kept))
    )
    transaction.cancel()
    assert isinstance(driver.settle(transaction), Aborted)
    assert driver.program.capacity() == before
    assert same(taken_over(driver, prepared, kept), expected)
