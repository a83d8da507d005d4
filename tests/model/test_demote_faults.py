"""Demotions and restores that are cancelled, fail, find no room or see the end: all stands as
before, and whatever was drawn is given back."""

from __future__ import annotations

import pytest

from ninfer_core.contract.checkpoints import Aborted, Bound, CheckpointAction, Demoted, Plan, Tier
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import NeverFits, Shortfall
from tests.model.checkpoint_driver import GREEDY, kept_end, prompt
from tests.model.snapshot_driver import assert_empty, snapshot_drivers, tokens
from tests.model.test_demote import answer, begin_demote, demote, same
from tests.model.test_snapshot_faults import failing

IDS = tokens(3, 90)
LATER = prompt([*IDS, 4, 5])


@pytest.fixture
def drivers(build_case):
    with snapshot_drivers(build_case) as build:
        yield build


def begin_restore(driver, ref, lane=0):
    plan = driver.program.plan_bind(driver.request(LATER, ref, lane=lane))
    assert isinstance(plan, Plan), plan
    return driver.program.begin(plan)


def opened(driver, way):
    """A checkpoint, what its answer must be, and the transaction that moves it."""
    kept = kept_end(driver, prompt(IDS)).checkpoint
    expected = answer(driver, LATER, kept)
    if way == "restore":
        demote(driver, kept)
    return kept, expected


def begin(driver, way, kept):
    return begin_demote(driver, kept) if way == "demote" else begin_restore(driver, kept)


def assert_tried_again(driver, way, kept, expected) -> None:
    """What did not come to be comes to be now, and the checkpoint is good from either tier."""
    result = driver.settle(begin(driver, way, kept))
    assert isinstance(result, Demoted if way == "demote" else Bound)
    if way == "restore":
        driver.program.finish(result.sequence, keep=False)
    assert same(answer(driver, LATER, kept), expected)
    if way == "demote":
        driver.drop(kept, CheckpointAction.DROP_DEVICE)
        assert same(answer(driver, LATER, kept), expected)
    driver.drop(kept, CheckpointAction.DELETE)
    assert_empty(driver)


@pytest.mark.parametrize("way", ["demote", "restore"])
@pytest.mark.parametrize("when", ["planned", "flying", "landed"])
def test_a_cancelled_move_leaves_all_as_it_was(drivers, way, when) -> None:
    driver = drivers("queued", 4)
    kept, expected = opened(driver, way)
    before, facts = driver.program.capacity(), driver.program.facts(kept)
    moving = begin(driver, way, kept)
    if when != "planned":
        assert driver.step(moving) is None
        assert driver.program.capacity() != before, "charged from the start"
    if when == "landed":
        for lane in driver.transfers._out.lane, driver.transfers._in.lane:
            lane.synchronize()
    moving.cancel()
    if when == "flying":
        assert driver.step(moving) is None, "what is on its way is waited for"
    result = driver.settle(moving)
    assert isinstance(result, Aborted)
    assert "cancelled" in result.reason
    assert (driver.program.capacity(), driver.program.facts(kept)) == (before, facts)
    with pytest.raises(EngineFailure, match="past its result"):
        moving.advance()
    assert_tried_again(driver, way, kept, expected)


@pytest.mark.parametrize("way", ["demote", "restore"])
@pytest.mark.parametrize("lag", [None, 3])
@pytest.mark.parametrize("step", ["state", "pages", "landed"])
def test_a_copy_that_fails_is_undone_and_may_be_tried_again(drivers, way, lag, step) -> None:
    driver = drivers("eager", lag)
    kept, expected = opened(driver, way)
    before, facts = driver.program.capacity(), driver.program.facts(kept)
    with failing(driver, step):
        result = driver.settle(begin(driver, way, kept))
    assert isinstance(result, Aborted)
    assert f"no {step}" in result.reason
    assert (driver.program.capacity(), driver.program.facts(kept)) == (before, facts)
    assert_tried_again(driver, way, kept, expected)


def test_a_checkpoint_on_its_way_is_not_dropped(drivers) -> None:
    driver = drivers("queued", 4)
    kept, _ = opened(driver, "demote")
    moving = begin_demote(driver, kept)
    assert driver.step(moving) is None
    with pytest.raises(EngineFailure, match="transaction moves it"):
        driver.program.drop(kept, CheckpointAction.DELETE)
    with pytest.raises(EngineFailure, match="another one was open"):
        begin_restore(driver, kept)
    assert isinstance(driver.settle(moving), Demoted)
    driver.drop(kept, CheckpointAction.DROP_DEVICE)
    moving = begin_restore(driver, kept)
    assert driver.step(moving) is None
    with pytest.raises(EngineFailure, match="transaction moves it"):
        driver.program.drop(kept, CheckpointAction.DELETE)
    moving.cancel()
    assert isinstance(driver.settle(moving), Aborted)
    driver.drop(kept, CheckpointAction.DELETE)


def test_a_full_host_refuses_and_holds_nothing(drivers) -> None:
    probe = drivers()
    slot, page = -(-probe.transfers.slot_bytes // 256) * 256, probe.transfers.page_bytes
    capacity = slot + 2 * page + 256
    driver = drivers(host_bytes=capacity)
    first = kept_end(driver, prompt(tokens(1, 60))).checkpoint
    second = kept_end(driver, prompt(tokens(2, 120))).checkpoint
    third = kept_end(driver, prompt(tokens(4, 190))).checkpoint
    demote(driver, first)
    before = driver.program.capacity()
    refusal = driver.program.plan_demote(second)
    assert refusal == Shortfall("host_bytes", slot + 2 * page, page + 256)
    refusal = driver.program.plan_demote(third)
    assert refusal == NeverFits("host_bytes", slot + 3 * page, capacity)
    assert driver.program.capacity() == before
    driver.drop(first, CheckpointAction.DELETE)
    demote(driver, second)


def test_room_that_goes_between_plan_and_start_aborts(drivers) -> None:
    driver = drivers()
    kept, expected = opened(driver, "demote")
    moving = begin_demote(driver, kept)
    arena = driver.program._stores.context.arena
    ballast = arena.allocate(arena.largest_free)
    result = moving.advance()
    arena.free(ballast)
    assert isinstance(result, Aborted)
    assert "host_bytes" in result.reason
    demote(driver, kept)
    for pool in driver.program._stores.slots.pool, driver.program._stores._main.pool:
        moving = begin_restore(driver, kept)
        taken = pool.available
        pool.reserve(taken)
        result = moving.advance()
        pool.unreserve(taken)
        assert isinstance(result, Aborted)
        assert pool.name in result.reason
    assert_tried_again(driver, "restore", kept, expected)


@pytest.mark.parametrize("way", ["demote", "restore"])
def test_a_program_closes_in_the_middle_of_a_copy(drivers, way) -> None:
    driver = drivers("queued", 0)
    kept = kept_end(driver, prompt(IDS)).checkpoint
    moving = begin_demote(driver, kept)
    assert moving.advance() is None
    if way == "restore":
        driver.transfers._out.lane.synchronize()
        assert isinstance(moving.advance(), Demoted)
        driver.drop(kept, CheckpointAction.DROP_DEVICE)
        assert begin_restore(driver, kept).advance() is None
    driver.program.close()
    assert_empty(driver)


def test_a_restore_that_ran_into_a_nan_breaks_the_checkpoint(drivers) -> None:
    """The health of an adopter reaches its source from the host, too."""
    driver = drivers()
    kept, _ = opened(driver, "restore")
    row = driver.begin(LATER, kept, sampling=GREEDY)
    driver.record(row).fail()
    assert driver.program.restore_work(kept, LATER) is None
    assert set(driver.program.actions(kept)) == {CheckpointAction.DELETE}
    assert driver.program.facts(kept).replicas == {Tier.HOST}
    driver.release(row)
    driver.drop(kept, CheckpointAction.DELETE)


@pytest.mark.parametrize("way", ["demote", "pause"])
@pytest.mark.parametrize("ends", ["lands", "is cancelled"])
def test_a_save_keeps_what_it_relies_on(drivers, way, ends) -> None:
    """Pages lie on the host for somebody who goes while others of the same sequence are saved."""
    driver = drivers("queued", 4)
    ids = tokens(6, 200)
    row = driver.begin(prompt(ids, [128]), sampling=GREEDY)
    stem = driver.prefill_capturing(row, [128])[128].checkpoint
    demote(driver, stem, drop=False)
    driver.generate(row, 3)
    if way == "demote":
        moving = begin_demote(driver, driver.keep(row).checkpoint)
    else:
        moving = driver.begin_pause(row)
    assert driver.step(moving) is None
    driver.drop(stem, CheckpointAction.DELETE)
    if ends == "is cancelled":
        moving.cancel()
        assert isinstance(driver.settle(moving), Aborted)
        assert driver.host_free() == driver.program.capacity().total.host_bytes
        return
    result = driver.settle(moving)
    if way == "pause":
        driver.restore(row, result.resume)
        driver.generate(row, 6)
        return
    driver.drop(result.checkpoint, CheckpointAction.DROP_DEVICE)
    assert driver.program.facts(result.checkpoint).replicas == {Tier.HOST}
