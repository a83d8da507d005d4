"""Rates that are measured at start, and the cost that comes of them."""

from __future__ import annotations

import pytest

from ninfer_core.engine.costs import Costs
from ninfer_qwen3_5.program import rates
from ninfer_qwen3_5.program.rates import Rates
from tests.model.snapshot_driver import assert_empty, snapshot_drivers


@pytest.fixture
def drivers(build_case):
    with snapshot_drivers(build_case) as build:
        yield build


@pytest.mark.parametrize("lag", [None, 3])
def test_a_start_measures_every_way_and_leaves_no_trace(drivers, lag) -> None:
    driver = drivers("queued", lag)
    found = driver.snapshots.tier.rates
    assert min(found.load, found.save, found.copy) > 0
    assert_empty(driver)


def test_each_way_really_moves_a_state(drivers, monkeypatch) -> None:
    """By a clock that counts: whoever measures asks before and after."""
    driver = drivers()
    tier, state = driver.snapshots.tier, driver.program._contexts._state
    slots, moved = driver.program._stores.slots, []
    monkeypatch.setattr(
        type(state), "copy_slot", lambda self, source, target: moved.append((source, target))
    )
    ticks = iter(range(1000))
    monkeypatch.setattr(rates, "perf_counter", lambda: float(next(ticks)))
    found = rates.measured(tier.transfers, state, slots.scratch)
    size = tier.transfers.slot_bytes
    assert (found.load, found.save, found.copy) == (size, size, size)
    assert set(moved) == {(0, slots.scratch)}, "a copy onto itself would move nothing"


def test_seconds_by_hand_and_nothing_for_what_was_not_measured() -> None:
    assert Rates(load=50.0, copy=200.0).seconds(loaded=100, copied=50) == 2.25
    assert Rates(copy=200.0).seconds(loaded=100, copied=50) == 0.25
    assert Rates().seconds(loaded=100, copied=50) == 0.0


def test_tokens_that_are_read_in_the_time_of_a_move() -> None:
    costs = Costs()
    assert costs.in_tokens(3.0) == 0.0
    costs.read(63, 0.001)
    assert costs.in_tokens(3.0) == 0.0, "too short to say anything"
    costs.read(1000, 2.0)
    assert costs.in_tokens(3.0) == 1500.0
    costs.read(1000, 1.0)
    assert costs.tokens_per_second == (500 + 1000) / (1 + 1)
