"""The ledger of one pool against a set of held units."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninfer_core.store import PermitViolationError, Plane, StaleHandleError, Unit, UnitPool


def test_capacity_is_the_minimum_over_ranks_and_planes():
    planes = [Plane("k", 0, 9, 256), Plane("v", 0, 7, 128), Plane("kv", 1, 8, 384)]
    pool = UnitPool("main", planes)
    assert (pool.capacity, pool.available) == (7, 7)
    assert pool.unit_bytes == 768


def test_a_pool_without_planes_is_refused():
    with pytest.raises(ValueError, match="'main' has no plane"):
        UnitPool("main", [])


def test_units_are_drawn_lowest_first_whatever_was_freed_when(new_pool):
    pool = new_pool(5)
    pool.reserve(5)
    units = [pool.draw() for _ in range(5)]
    for index in (3, 0, 4):
        pool.release(units[index])
    pool.reserve(2)
    assert [pool.draw().index for _ in range(2)] == [0, 3]


def test_a_reservation_is_all_or_nothing_and_says_what_is_missing(new_pool):
    pool = new_pool(5)
    assert pool.reserve(3) is None
    short = pool.reserve(4)
    assert (short.pool, short.needed, short.available, short.missing) == ("main", 4, 2, 2)
    assert (pool.reserved, pool.available) == (3, 2)


def test_drawing_without_a_reservation_is_refused(new_pool):
    pool = new_pool(5)
    with pytest.raises(PermitViolationError, match="without a reservation"):
        pool.draw()


@pytest.mark.parametrize("count", [-1, 3])
def test_only_what_was_promised_is_given_back(new_pool, count):
    pool = new_pool(5)
    pool.reserve(2)
    with pytest.raises(PermitViolationError, match="2 reserved"):
        pool.unreserve(count)


def test_a_second_release_and_an_old_generation_are_stale(new_pool):
    pool = new_pool(1)
    pool.reserve(1)
    first = pool.draw()
    pool.release(first)
    with pytest.raises(StaleHandleError):
        pool.release(first)
    pool.reserve(1)
    second = pool.draw()
    assert second.index == first.index
    with pytest.raises(StaleHandleError):
        pool.release(first)
    assert pool.live_units() == {second}


def test_renewal_leaves_one_valid_handle(new_pool):
    pool = new_pool(1)
    pool.reserve(1)
    old = pool.draw()
    new = pool.renew(old)
    assert (new.index, pool.alive(old), pool.alive(new)) == (old.index, False, True)


@pytest.mark.parametrize("index", [-1, 1])
def test_units_outside_the_pool_are_stale(new_pool, index):
    assert not new_pool(1).alive(Unit(index, 1))


def test_random_histories_keep_the_books(explore, new_pool):
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.pool, self.held, self.gone, self.reserved = new_pool(6), [], [], 0

        @rule(count=st.integers(0, 7))
        def reserve(self, count: int) -> None:
            fits = count <= 6 - len(self.held) - self.reserved
            assert (self.pool.reserve(count) is None) == fits
            self.reserved += count * fits

        @precondition(lambda self: self.reserved)
        @rule()
        def draw(self) -> None:
            unit = self.pool.draw()
            free = set(range(6)) - {held.index for held in self.held}
            assert unit.index == min(free)
            assert unit not in self.gone
            self.held.append(unit)
            self.reserved -= 1

        @precondition(lambda self: self.reserved)
        @rule(data=st.data())
        def unreserve(self, data) -> None:
            count = data.draw(st.integers(0, self.reserved))
            self.pool.unreserve(count)
            self.reserved -= count

        @precondition(lambda self: self.held)
        @rule(pick=st.integers(0, 99))
        def release(self, pick: int) -> None:
            unit = self.held.pop(pick % len(self.held))
            self.pool.release(unit)
            self.gone.append(unit)

        @precondition(lambda self: self.gone)
        @rule(pick=st.integers(0, 99))
        def release_again(self, pick: int) -> None:
            with pytest.raises(StaleHandleError):
                self.pool.release(self.gone[pick % len(self.gone)])

        @invariant()
        def books(self) -> None:
            pool = self.pool
            pool.check()
            assert pool.live_units() == set(self.held)
            assert (pool.allocated, pool.reserved) == (len(self.held), self.reserved)
            assert pool.allocated + pool.reserved + pool.available == pool.capacity

    explore(Machine)
