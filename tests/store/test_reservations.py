"""Reservations over several pools: all axes or none, exact shortfalls, one settlement."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import NeverFits, Shortfall
from ninfer_core.store import (
    Demand,
    HostArena,
    Ledger,
    PermitViolationError,
    PoolShortfall,
    Reservation,
    Shortfalls,
    combine,
)


@pytest.fixture
def pools(new_pool):
    return new_pool(2, "state"), new_pool(10, "main"), new_pool(4, "draft")


@pytest.fixture
def arena():
    return HostArena("host_bytes", 1024)


@pytest.fixture
def ledger(pools, arena):
    return Ledger(pools, arena)


def available(pools, arena) -> tuple[int, ...]:
    return (*(pool.available for pool in pools), arena.free_bytes)


def test_every_short_axis_is_named_in_pool_order_and_nothing_is_held(ledger, pools, arena):
    answer = ledger.reserve(Demand({"draft": 6, "main": 10, "state": 3}, (512, 800)))
    assert answer == Shortfalls(
        (
            PoolShortfall("state", 3, 2),
            PoolShortfall("draft", 6, 4),
            PoolShortfall("host_bytes", 1536, 1024, largest=1024),
        )
    )
    assert answer.first.refusal() == Shortfall("state", 3, 2)
    assert str(answer).startswith("state: 3 needed, 2 available, draft: 6")
    assert available(pools, arena) == (2, 10, 4, 1024)
    assert ledger.open_reservations == 0


def test_one_short_axis_holds_none_of_the_others(ledger, pools, arena):
    assert isinstance(ledger.reserve(Demand({"main": 4, "draft": 5}, (256,))), Shortfalls)
    assert available(pools, arena) == (2, 10, 4, 1024)


def test_a_fragmented_host_is_short_although_its_bytes_would_do(ledger, arena):
    blocks = [arena.allocate(256) for _ in range(4)]
    arena.free(blocks[0])
    arena.free(blocks[2])
    axis = ledger.reserve(Demand(host_extents=(512,))).first
    assert (axis.needed, axis.available, axis.largest, axis.missing) == (512, 512, 256, 0)


def test_settlement_returns_exactly_what_was_not_drawn(ledger, pools, arena):
    grant = ledger.reserve(Demand({"main": 5, "state": 1}, (256, 300)))
    drawn = [grant.draw("main"), grant.draw("main")]
    extent = grant.draw_extent()
    assert (grant.remaining("main"), grant.remaining("state")) == (3, 1)
    assert extent.size == 256
    assert grant.settle() == Demand({"main": 3, "state": 1}, (512,))
    assert available(pools, arena) == (2, 8, 4, 768)
    for unit in drawn:
        pools[1].release(unit)
    arena.free(extent)
    assert available(pools, arena) == (2, 10, 4, 1024)


def test_a_reservation_is_used_once(ledger):
    grant = ledger.reserve(Demand({"main": 2}, (256,)))
    grant.settle()
    for use in (grant.settle, lambda: grant.draw("main"), grant.draw_extent):
        with pytest.raises(EngineFailure):
            use()
    with pytest.raises(PermitViolationError, match="settled"):
        ledger.extend(grant, Demand({"main": 1}))


def test_drawing_past_the_promise_is_a_permit_violation(ledger):
    grant = ledger.reserve(Demand({"main": 1}))
    grant.draw("main")
    for use in (lambda: grant.draw("main"), lambda: grant.draw("draft"), grant.draw_extent):
        with pytest.raises(PermitViolationError):
            use()


def test_an_extension_is_all_or_nothing_too(ledger, pools):
    grant = ledger.reserve(Demand({"main": 4}))
    assert ledger.extend(grant, Demand({"main": 3, "draft": 2})) is None
    assert isinstance(ledger.extend(grant, Demand({"main": 1, "draft": 3})), Shortfalls)
    assert (grant.remaining("main"), grant.remaining("draft")) == (7, 2)
    assert [pool.reserved for pool in pools] == [0, 7, 2]


def test_asking_what_is_short_holds_nothing(ledger, pools, arena):
    assert ledger.shortfall(Demand({"main": 10}, (1024,))) is None
    assert ledger.shortfall(Demand({"main": 11})).first == PoolShortfall("main", 11, 10)
    assert available(pools, arena) == (2, 10, 4, 1024)


def test_what_exceeds_the_capacity_never_fits(ledger):
    assert ledger.never_fits(Demand({"main": 10}, (1024,))) is None
    assert ledger.never_fits(Demand({"main": 11})) == NeverFits("main", 11, 10)
    assert ledger.never_fits(Demand(host_extents=(1000, 1))) == NeverFits("host_bytes", 1280, 1024)


@pytest.mark.parametrize(
    ("demand", "message"),
    [
        (Demand({"mian": 1}), "no pool is named 'mian'; there are: state, main, draft"),
        (Demand({"main": -1}), "from 0 up"),
        (Demand({"main": 1}, (256, 0)), "1 byte or more"),
    ],
)
def test_a_senseless_demand_is_refused(ledger, pools, arena, demand, message):
    with pytest.raises(PermitViolationError, match=message):
        ledger.reserve(demand)
    assert available(pools, arena) == (2, 10, 4, 1024)
    assert ledger.open_reservations == 0


def test_host_extents_need_a_host(pools):
    with pytest.raises(PermitViolationError, match="without a host arena"):
        Ledger(pools).reserve(Demand(host_extents=(1,)))


def test_demands_combine_by_axis():
    both = combine([Demand({"main": 1}, (3,)), Demand({"main": 2, "state": 1}, (4,))])
    assert both == Demand({"main": 3, "state": 1}, (3, 4))
    assert combine([]).empty
    assert Demand({"main": 0}).empty


def test_random_histories_keep_the_books(explore, new_pool):
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.pools = {name: new_pool(8, name) for name in ("state", "main")}
            self.arena = HostArena("host_bytes", 8 * 256)
            self.ledger = Ledger(self.pools.values(), self.arena)
            self.open: list[tuple[Reservation, dict[str, int]]] = []
            self.drawn: list[tuple[str, object]] = []

        def promised(self, name: str) -> int:
            return sum(left[name] for _, left in self.open)

        def used(self, name: str) -> int:
            return sum(drawn == name for drawn, _ in self.drawn)

        @rule(state=st.integers(0, 5), main=st.integers(0, 5))
        def reserve(self, state: int, main: int) -> None:
            wanted = {"state": state, "main": main}
            free = {n: 8 - self.promised(n) - self.used(n) for n in wanted}
            answer = self.ledger.reserve(Demand(wanted))
            short = {n for n in wanted if wanted[n] > free[n]}
            if short:
                assert {axis.pool for axis in answer.axes} == short
                assert all(axis.available == free[axis.pool] for axis in answer.axes)
            else:
                self.open.append((answer, wanted))

        @precondition(lambda self: self.open)
        @rule(pick=st.integers(0, 99), name=st.sampled_from(["state", "main"]))
        def draw(self, pick: int, name: str) -> None:
            grant, left = self.open[pick % len(self.open)]
            if left[name]:
                self.drawn.append((name, grant.draw(name)))
                left[name] -= 1
            else:
                with pytest.raises(PermitViolationError):
                    grant.draw(name)

        @precondition(lambda self: self.open)
        @rule(pick=st.integers(0, 99))
        def settle(self, pick: int) -> None:
            grant, left = self.open.pop(pick % len(self.open))
            assert grant.settle().units == {n: count for n, count in left.items() if count}

        @precondition(lambda self: self.drawn)
        @rule(pick=st.integers(0, 99))
        def release(self, pick: int) -> None:
            name, unit = self.drawn.pop(pick % len(self.drawn))
            self.pools[name].release(unit)

        @invariant()
        def books(self) -> None:
            self.ledger.check()
            for name, pool in self.pools.items():
                pool.check()
                assert pool.reserved == self.promised(name)
                assert pool.allocated == self.used(name)

    explore(Machine)
