"""What a copy brought is taken over, and places are given back, a portion of pages at a time."""

from __future__ import annotations

import pytest

from ninfer_core.contract.checkpoints import Bound, Demoted, Paused
from ninfer_qwen3_5.program import copying
from tests.model import test_demote, test_snapshots
from tests.model.checkpoint_driver import kept_end, prompt
from tests.model.snapshot_driver import (
    COUNT,
    DRAWN,
    assert_empty,
    snapshot_drivers,
    tokens,
    undisturbed,
)
from tests.model.stores.machine import StoreMachine
from tests.model.test_demote import begin_demote, demote

IDS = tokens(3, 300)
"""Five pages."""


@pytest.fixture
def drivers(build_case, monkeypatch):
    monkeypatch.setattr(copying, "PORTION", 1)
    with snapshot_drivers(build_case) as build:
        yield build


@pytest.mark.parametrize(("units", "lag"), [("queued", 3)])
def test_random_pauses_change_no_bit(drivers, units, lag) -> None:
    test_snapshots.test_random_pauses_change_no_bit_of_anyone(drivers, units, lag)


@pytest.mark.parametrize(("units", "lag"), [("queued", 3)])
def test_a_prompt_begins_with_the_same_bits_from_either_tier(drivers, units, lag) -> None:
    test_demote.test_a_prompt_begins_with_the_same_bits_from_either_tier(drivers, units, lag, 200)


def started(driver, way):
    """A transaction of five pages that is about to begin, one of each kind."""
    if way in ("pause", "resume"):
        row = driver.begin(prompt(IDS), sampling=DRAWN)
        driver.generate(row, 5)
        if way == "pause":
            return driver.begin_pause(row)
        return driver.begin_resume(row, driver.snapshot(row))
    kept = kept_end(driver, prompt(IDS)).checkpoint
    if way == "demote":
        return begin_demote(driver, kept)
    demote(driver, kept)
    return driver.program.begin(
        driver.program.plan_bind(driver.request(prompt([*IDS, 4, 5]), kept))
    )


STEPS = {"pause": 10, "resume": 9, "demote": 5, "restore": 9}
"""Five that take in, the last of which clears the first page, and four that clear; a pause looks
once more whether there is anything left."""

RESULTS = {"pause": Paused, "resume": Bound, "demote": Demoted, "restore": Bound}


@pytest.mark.parametrize("way", STEPS)
def test_each_step_takes_in_or_clears_one_page(drivers, way) -> None:
    driver = drivers("eager")
    transaction = started(driver, way)
    results = []
    while not results or results[-1] is None:
        results.append(driver.step(transaction))
    assert isinstance(results[-1], RESULTS[way])
    assert len(results) == STEPS[way]


@pytest.mark.parametrize("way", STEPS)
def test_an_end_at_any_step_leaves_nothing(drivers, way) -> None:
    for steps in range(1, STEPS[way]):
        driver = drivers("eager")
        transaction = started(driver, way)
        for _ in range(steps):
            assert driver.step(transaction) is None
        driver.program.close()
        assert_empty(driver)


@pytest.mark.parametrize("way", STEPS)
def test_a_cancel_comes_too_late_once_pages_are_taken_in(drivers, way) -> None:
    for steps in range(1, STEPS[way]):
        driver = drivers("eager")
        transaction = started(driver, way)
        for _ in range(steps):
            assert driver.step(transaction) is None
        transaction.cancel()
        assert isinstance(driver.settle(transaction), RESULTS[way])


def test_a_sequence_that_came_back_by_portions_goes_on(drivers) -> None:
    expected = undisturbed(drivers(), IDS)
    driver = drivers("queued", 2)
    row = driver.begin(prompt(IDS), sampling=DRAWN)
    driver.generate(row, 5)
    driver.restore(row, driver.snapshot(row))
    driver.generate(row, COUNT)
    assert (row.tokens, row.logprobs) == expected
    total = driver.program.capacity().total.host_bytes
    assert driver.host_free() == total


class ByPortions(StoreMachine):
    """What is free and where pages lie is told where a transaction ends. Until then, once copies
    have landed, nobody cancels and only the books are checked."""

    between = 0

    def landed(self) -> bool:
        return self.moving is not None and self.moving.transaction._landed

    def prove(self) -> None:
        if not self.landed():
            super().prove()
            return
        self.between += 1
        self.program.check()

    def cancel(self) -> None:
        if not self.landed():
            super().cancel()


def test_the_stores_agree_with_their_model_when_all_is_done(monkeypatch) -> None:
    monkeypatch.setattr(copying, "PORTION", 1)
    between = 0
    for seed in range(6):
        machine = ByPortions(seed)
        for _ in range(120):
            machine.step()
        machine.close()
        between += machine.between
    assert between > 8
