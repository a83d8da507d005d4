"""Snapshots that are cancelled, fail, find no room or see the end: nothing is lost or kept."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from ninfer_core.contract.checkpoints import Aborted, ResumeKind
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import NeverFits, Shortfall
from ninfer_core.device.errors import DeviceError
from tests.model.checkpoint_driver import GREEDY, prompt
from tests.model.snapshot_driver import (
    COUNT,
    DRAWN,
    assert_empty,
    snapshot_drivers,
    tokens,
    undisturbed,
)


@pytest.fixture
def drivers(build_case):
    with snapshot_drivers(build_case) as build:
        yield build


@pytest.mark.parametrize("when", ["planned", "flying", "landed"])
def test_a_cancelled_pause_leaves_the_sequence_where_it_was(drivers, when) -> None:
    ids = tokens(3, 90)
    expected = undisturbed(drivers(), ids)
    driver = drivers("queued", 4)
    row = driver.begin(prompt(ids), sampling=DRAWN)
    driver.generate(row, 5)
    before = driver.program.capacity()
    pause = driver.begin_pause(row)
    if when != "planned":
        assert driver.step(pause) is None
        assert driver.host_free() < before.available.host_bytes, "charged from the start"
    if when == "landed":
        for lane in driver.transfers._out.lane, driver.transfers._in.lane:
            lane.synchronize()
    pause.cancel()
    if when == "flying":
        assert driver.step(pause) is None, "what is on its way is waited for"
    result = driver.settle(pause)
    assert isinstance(result, Aborted)
    assert "cancelled" in result.reason
    assert driver.program.capacity() == before
    with pytest.raises(EngineFailure, match="past its result"):
        pause.advance()
    driver.generate(row, COUNT)
    assert (row.tokens, row.logprobs) == expected


@pytest.mark.parametrize("when", ["planned", "flying"])
def test_a_cancelled_resume_leaves_the_snapshot_whole(drivers, when) -> None:
    ids = tokens(3, 90)
    expected = undisturbed(drivers(), ids)
    driver = drivers("queued", 4)
    row = driver.begin(prompt(ids), sampling=DRAWN)
    driver.generate(row, 5)
    resume = driver.snapshot(row)
    before = driver.program.capacity()
    opened = driver.begin_resume(row, resume)
    if when == "flying":
        assert driver.step(opened) is None
    opened.cancel()
    result = driver.settle(opened)
    assert isinstance(result, Aborted)
    assert driver.program.capacity() == before
    driver.restore(row, resume)
    driver.generate(row, COUNT)
    assert (row.tokens, row.logprobs) == expected


@pytest.mark.parametrize("lag", [None, 3])
@pytest.mark.parametrize("step", ["state", "pages", "landed"])
def test_a_copy_that_fails_is_undone_and_may_be_tried_again(drivers, lag, step) -> None:
    ids = tokens(3, 90)
    expected = undisturbed(drivers(), ids)
    driver = drivers("eager", lag)
    row = driver.begin(prompt(ids), sampling=DRAWN)
    driver.generate(row, 5)
    before = driver.program.capacity()
    with failing(driver, step):
        result = driver.settle(driver.begin_pause(row))
    assert isinstance(result, Aborted)
    assert f"no {step}" in result.reason
    assert driver.program.capacity() == before
    driver.decode([row])
    resume = driver.snapshot(row)
    before = driver.program.capacity()
    with failing(driver, step):
        result = driver.settle(driver.begin_resume(row, resume))
    assert isinstance(result, Aborted)
    assert driver.program.capacity() == before
    driver.restore(row, resume)
    driver.generate(row, COUNT)
    assert (row.tokens, row.logprobs) == expected


@contextmanager
def failing(driver, step):
    def fault(at: str) -> None:
        if at == step:
            raise DeviceError(f"no {at}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.transfers, "faults", fault)
        yield


def test_a_full_host_refuses_and_holds_nothing(drivers) -> None:
    probe = drivers()
    slot, page = probe.transfers.slot_bytes, probe.transfers.page_bytes
    rounded = -(-slot // 256) * 256
    capacity = rounded + 2 * page + 256
    driver = drivers(host_bytes=capacity)
    first = driver.begin(prompt(tokens(1, 60)), lane=0)
    second = driver.begin(prompt(tokens(2, 120)), lane=1)
    third = driver.begin(prompt(tokens(4, 190)), lane=2)
    for row in (first, second, third):
        driver.generate(row, 2)
    driver.snapshot(first)
    before = driver.program.capacity()
    refusal = driver.program.plan_pause(second.handle, ResumeKind.SNAPSHOT)
    assert refusal == Shortfall("host_bytes", rounded + 2 * page, page + 256)
    refusal = driver.program.plan_pause(third.handle, ResumeKind.SNAPSHOT)
    assert refusal == NeverFits("host_bytes", rounded + 3 * page, capacity)
    assert driver.program.capacity() == before
    driver.program.check()


def test_room_that_goes_between_plan_and_start_aborts(drivers) -> None:
    driver = drivers()
    row = driver.begin(prompt(tokens(1, 60)), sampling=GREEDY)
    driver.generate(row, 2)
    pause = driver.begin_pause(row)
    arena = driver.program._stores.context.arena
    ballast = arena.allocate(arena.largest_free)
    result = pause.advance()
    arena.free(ballast)
    assert isinstance(result, Aborted)
    assert "host_bytes" in result.reason
    resume = driver.snapshot(row)
    opened = driver.begin_resume(row, resume)
    slots = driver.program._stores.slots.pool
    taken = slots.available
    slots.reserve(taken)
    result = opened.advance()
    slots.unreserve(taken)
    assert isinstance(result, Aborted)
    assert "state_slots" in result.reason
    driver.restore(row, resume)


@pytest.mark.parametrize("way", ["pause", "resume"])
def test_a_program_closes_in_the_middle_of_a_copy(drivers, way) -> None:
    driver = drivers("queued", 0)
    row = driver.begin(prompt(tokens(1, 70)), sampling=GREEDY)
    driver.generate(row, 3)
    opened = driver.begin_pause(row)
    assert opened.advance() is None
    if way == "resume":
        driver.transfers._out.lane.synchronize()
        opened = driver.begin_resume(row, opened.advance().resume)
        assert opened.advance() is None
    else:
        with pytest.raises(EngineFailure, match="another one was open"):
            driver.program.begin(driver.program.plan_pause(row.handle, ResumeKind.REPLAY))
    driver.program.close()
    assert_empty(driver)


def test_without_host_bytes_no_snapshot_is_made(drivers) -> None:
    driver = drivers(host_bytes=0)
    row = driver.begin(prompt(tokens(1, 70)), sampling=GREEDY)
    driver.generate(row, 3)
    assert driver.program.plan_pause(row.handle, ResumeKind.SNAPSHOT) == NeverFits(
        "host_bytes", 1, 0
    )
