"""Snapshots of sequences that share pages with checkpoints and with each other."""

from __future__ import annotations

import pytest

from ninfer_core.contract.checkpoints import Aborted, CheckpointAction
from tests.model.checkpoint_driver import GREEDY, prompt
from tests.model.snapshot_driver import (
    COUNT,
    DRAWN,
    KINDS,
    assert_empty,
    snapshot_drivers,
    tokens,
)


@pytest.fixture
def drivers(build_case):
    with snapshot_drivers(build_case) as build:
        yield build


@pytest.mark.parametrize(("units", "lag"), KINDS)
def test_pages_that_a_checkpoint_shares_are_saved_once_and_stay_on_the_device(
    drivers, units, lag
) -> None:
    ids = tokens(6, 140)
    suffixes = [tokens(7, 20), tokens(8, 30)]
    oracle = drivers("eager")
    root = oracle.begin(prompt(ids, [128]), sampling=DRAWN)
    base = oracle.prefill_capturing(root, [128])[128].checkpoint
    prompts = [prompt(ids[:128] + suffix) for suffix in suffixes]
    expected = []
    for prepared in prompts:
        row = oracle.begin(prepared, base, sampling=DRAWN)
        oracle.generate(row, COUNT)
        oracle.release(row)
        expected.append((row.tokens, row.logprobs))
    driver = drivers(units, lag)
    root = driver.begin(prompt(ids, [128]), sampling=DRAWN)
    kept = driver.prefill_capturing(root, [128])[128].checkpoint
    driver.release(root)
    rows = [
        driver.begin(prepared, kept, sampling=DRAWN, lane=lane)
        for lane, prepared in enumerate(prompts)
    ]
    for row in rows:
        driver.generate(row, 4)
    slot, page = driver.transfers.slot_bytes, driver.transfers.page_bytes
    first = driver.settle(driver.begin_pause(rows[0]))
    second = driver.settle(driver.begin_pause(rows[1]))
    assert first.moved_bytes == slot + 3 * page
    assert second.moved_bytes == slot + page, "the shared prefix lies there already"
    image = -(-slot // 256) * 256
    assert first.resume.holds.host_bytes == image + page, "what a revoke would free"
    assert second.resume.holds.host_bytes == image + page
    total = driver.program.capacity().total.pages["main"]
    assert driver.program.capacity().available.pages["main"] == total - 2, "the checkpoint's"
    driver.program.drop(kept, CheckpointAction.DELETE)
    driver.program.check()
    # Nobody else holds them now; whoever needs room gets it.
    driver.program._stores.spare()
    assert driver.program.capacity().available.pages["main"] == total
    for row, paused in zip(rows, (first, second), strict=True):
        driver.restore(row, paused.resume, lane=rows.index(row))
    assert driver.host_free() == driver.program.capacity().total.host_bytes
    for row in rows:
        driver.generate(row, COUNT)
    assert [(row.tokens, row.logprobs) for row in rows] == expected
    for row in rows:
        driver.release(row)
    assert_empty(driver)


def two_that_share(driver):
    """Two sequences over the same first two pages, and no checkpoint."""
    ids = tokens(6, 130)
    row = driver.begin(prompt(ids, [128]), sampling=GREEDY)
    kept = driver.prefill_capturing(row, [128])[128].checkpoint
    sharer = driver.begin(prompt(ids), kept, sampling=GREEDY, lane=1)
    driver.program.drop(kept, CheckpointAction.DELETE)
    return row, sharer


def test_what_only_snapshots_hold_on_the_device_makes_way(drivers) -> None:
    """The pool is full of what was shared with a sequence that is gone."""
    driver = drivers(max_context=256, kv_tokens=5 * 64, max_concurrency=2)
    row, sharer = two_that_share(driver)
    driver.generate(row, 3)
    resume = driver.snapshot(row)
    driver.release(sharer)
    assert driver.program.capacity().available.pages["main"] == 3
    other = driver.begin(prompt(tokens(9, 250)), sampling=GREEDY, lane=1)
    driver.generate(other, 3)
    assert driver.program.capacity().available.pages["main"] == 1
    driver.release(other)
    driver.restore(row, resume)
    driver.generate(row, 6)


def test_a_prefix_that_two_snapshots_share_stays_on_the_host_for_the_second(drivers) -> None:
    driver = drivers()
    ids = tokens(6, 140)
    root = driver.begin(prompt(ids, [128]), sampling=GREEDY)
    kept = driver.prefill_capturing(root, [128])[128].checkpoint
    driver.release(root)
    rows = [driver.begin(prompt([*ids, n]), kept, sampling=GREEDY, lane=n) for n in range(2)]
    for row in rows:
        driver.generate(row, 2)
    first, second = (driver.snapshot(row) for row in rows)
    driver.program.drop(kept, CheckpointAction.DELETE)
    driver.release(driver.restore(rows[0], first))
    driver.snapshots.tier.trim()
    capacity = driver.program.capacity()
    assert capacity.available.pages == capacity.total.pages
    driver.restore(rows[1], second)
    driver.generate(rows[1], 5)


def test_pages_that_went_between_plan_and_start_abort_a_resume(drivers) -> None:
    """Its own shared pages on the device are not counted as there and given up at once."""
    driver = drivers(max_context=256, kv_tokens=6 * 64, max_concurrency=2)
    row, sharer = two_that_share(driver)
    driver.generate(row, 3)
    resume = driver.snapshot(row)
    driver.release(sharer)
    other = driver.begin(prompt(tokens(9, 190)), sampling=GREEDY, lane=1)
    driver.generate(other, 2)
    opened = driver.begin_resume(row, resume)
    driver.generate(other, 4)
    result = driver.step(opened)
    assert isinstance(result, Aborted)
    assert "main" in result.reason
    driver.release(other)
    driver.restore(row, resume)
    driver.generate(row, 5)
