"""Sequences that wait on the host: the same bits afterwards, and what they hold meanwhile."""

from __future__ import annotations

import dataclasses
import random

import pytest

from ninfer_core.contract.checkpoints import Paused, ResumeKind
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.units import UnitKind
from tests.model.checkpoint_driver import GREEDY, prompt
from tests.model.snapshot_driver import (
    COUNT,
    DRAWN,
    KINDS,
    assert_empty,
    snapshot_drivers,
    tokens,
    undisturbed,
)


@pytest.fixture
def drivers(build_case):
    with snapshot_drivers(build_case) as build:
        yield build


def turn(driver, row) -> None:
    """The next unit of one sequence."""
    if driver.program.unit_need(row.handle).kind in (UnitKind.PREFILL, UnitKind.REPLAY):
        driver.chunk(row)
    else:
        driver.decode([row])


@pytest.mark.parametrize(("units", "lag"), KINDS)
def test_random_pauses_change_no_bit_of_anyone(drivers, units, lag) -> None:
    """Three sequences take turns; any of them is paused anywhere, the others go on meanwhile."""
    r = random.Random(5)
    prompts = [tokens(seed, length) for seed, length in enumerate((150, 64, 9))]
    samplings = [DRAWN, GREEDY, dataclasses.replace(DRAWN, seed=7)]
    oracle = drivers("eager", prefill_chunk=32)
    expected = [undisturbed(oracle, *pair) for pair in zip(prompts, samplings, strict=True)]
    driver = drivers(units, lag, prefill_chunk=32)
    rows = [
        driver.begin(prompt(ids), sampling=sampling, lane=lane)
        for lane, (ids, sampling) in enumerate(zip(prompts, samplings, strict=True))
    ]
    phases = set()
    while any(len(row.tokens) < COUNT for row in rows):
        going = [row for row in rows if len(row.tokens) < COUNT]
        if r.random() < 0.3:
            victim = going.pop(r.randrange(len(going)))
            phases.add(driver.program.unit_need(victim.handle).kind)
            resume = while_others_run(driver, r, going, driver.begin_pause(victim)).resume
            for row in going:
                if len(row.tokens) < COUNT and r.random() < 0.5:
                    turn(driver, row)
            opened = driver.begin_resume(victim, resume)
            driver.bound(victim, while_others_run(driver, r, going, opened))
        elif r.random() < 0.5:
            turn(driver, r.choice(going))
        else:
            decode_together(driver, going)
    assert phases == {UnitKind.PREFILL, UnitKind.DECODE}
    assert [(row.tokens, row.logprobs) for row in rows] == expected
    for row in rows:
        driver.release(row)
    assert_empty(driver)


def while_others_run(driver, r, others, transaction):
    result = driver.step(transaction)
    while result is None:
        going = [row for row in others if len(row.tokens) < COUNT]
        if going:
            turn(driver, r.choice(going))
        result = driver.step(transaction)
    return result


def decode_together(driver, rows) -> None:
    ready = [row for row in rows if driver.program.unit_need(row.handle).kind is UnitKind.DECODE]
    if ready:
        driver.decode(ready)


@pytest.mark.parametrize("lag", [None, 2])
def test_a_pause_frees_the_device_and_says_what_it_holds(drivers, lag) -> None:
    driver = drivers("eager", lag)
    row = driver.begin(prompt(tokens(1, 100)), sampling=DRAWN)
    driver.generate(row, 10)
    total = driver.program.capacity().total
    result = driver.settle(driver.begin_pause(row))
    assert isinstance(result, Paused)
    page, slot = driver.transfers.page_bytes, driver.transfers.slot_bytes
    assert result.moved_bytes == slot + 2 * page
    assert result.resume.kind is ResumeKind.SNAPSHOT
    assert (result.resume.frontier, result.resume.ledger) == (109, 110)
    held = result.resume.holds
    assert (held.host_bytes, held.state_slots) == (-(-slot // 256) * 256 + 2 * page, 0)
    available = driver.program.capacity().available
    assert (available.pages, available.state_slots) == (total.pages, total.state_slots)
    assert driver.host_free() == total.host_bytes - held.host_bytes
    with pytest.raises(EngineFailure, match="stale"):
        driver.program.unit_need(row.handle)
    driver.program.discard(result.resume)
    assert_empty(driver)
    with pytest.raises(EngineFailure, match="stale"):
        driver.program.discard(result.resume)


def test_a_resume_moves_all_back_and_frees_the_host(drivers) -> None:
    driver = drivers("eager", kv_tokens=4 * 64, max_context=256)
    row = driver.begin(prompt(tokens(1, 63)), sampling=DRAWN)
    driver.generate(row, 2)
    resume = driver.snapshot(row)
    result = driver.settle(driver.begin_resume(row, resume))
    page, slot = driver.transfers.page_bytes, driver.transfers.slot_bytes
    assert (result.moved_bytes, result.reused_tokens) == (slot + page, 64)
    assert driver.host_free() == driver.program.capacity().total.host_bytes
    assert driver.program.capacity().available.pages["main"] == 2, "room for the first new unit"
    with pytest.raises(EngineFailure, match="stale"):
        driver.program.plan_bind(dataclasses.replace(row.request, source=resume))
    driver.release(driver.bound(row, result))


@pytest.mark.parametrize(("units", "lag"), KINDS)
def test_a_revoked_snapshot_is_a_replay_of_the_same(drivers, units, lag) -> None:
    ids = tokens(3, 90)
    expected = undisturbed(drivers("eager", prefill_chunk=32), ids)
    driver = drivers(units, lag, prefill_chunk=32)
    row = driver.begin(prompt(ids), sampling=DRAWN)
    driver.generate(row, 12)
    snapshot = driver.snapshot(row)
    replay = driver.program.revoke(snapshot)
    assert replay.kind is ResumeKind.REPLAY
    assert (replay.frontier, replay.ledger) == (snapshot.frontier, snapshot.ledger)
    assert_empty(driver)
    assert driver.program.revoke(replay) == replay
    driver.restore(row, replay)
    driver.chunk(row)
    # In the middle of a replay it is paused again, now to the host.
    driver.restore(row, driver.snapshot(row))
    assert driver.program.unit_need(row.handle).kind is UnitKind.REPLAY
    driver.generate(row, COUNT)
    assert (row.tokens, row.logprobs) == expected


def test_no_page_at_all_is_a_snapshot_too(drivers) -> None:
    """A sequence that has not run yet."""
    ids = tokens(3, 40)
    expected = undisturbed(drivers(), ids)
    driver = drivers("queued", 2)
    row = driver.begin(prompt(ids), sampling=DRAWN)
    driver.restore(row, driver.snapshot(row))
    driver.generate(row, COUNT)
    assert (row.tokens, row.logprobs) == expected


def test_a_sequence_comes_back_in_another_row(drivers) -> None:
    """Settings and counts are kept by row, and somebody else took the old one."""
    ids = tokens(3, 70)
    expected = undisturbed(drivers(), ids)
    driver = drivers("queued")
    row = driver.begin(prompt(ids), sampling=DRAWN)
    driver.generate(row, 6)
    before = driver.record(row).row
    resume = driver.snapshot(row)
    other = driver.begin(prompt(tokens(4, 20)), sampling=GREEDY, lane=1)
    driver.generate(other, 4)
    assert driver.record(other).row == before
    driver.restore(row, resume, lane=2)
    assert driver.record(row).row != before
    driver.generate(row, COUNT)
    assert (row.tokens, row.logprobs) == expected
