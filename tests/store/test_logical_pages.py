"""Logical pages: who may write, what is protected, when a page dies."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninfer_core.store import (
    LogicalPages,
    ProtectedRangeError,
    StaleHandleError,
    TransitionError,
    pages_for,
)
from ninfer_core.store.logical_pages import PagePin, columns_on

WRITER, OTHER = 1, 2


@pytest.fixture
def pool(new_pool):
    return new_pool(4)


@pytest.fixture
def pages(pool):
    return LogicalPages(pool)


@pytest.fixture
def page(pages, pool, grant_of):
    return pages.create(grant_of(pool, 1).draw("main"), WRITER)


def test_tokens_to_pages_and_columns():
    assert [pages_for(n) for n in (0, 1, 64, 65, 1000)] == [0, 1, 1, 2, 16]
    assert [columns_on(i, 130) for i in range(4)] == [64, 64, 2, 0]


def test_a_single_reference_is_not_a_permission_to_write(pages, page):
    pages.commit(page, WRITER, 40)
    pages.disown(page, WRITER)
    assert (page.refs, page.writer) == (1, None)
    with pytest.raises(ProtectedRangeError, match="not written by space"):
        pages.commit(page, WRITER, 41)


def test_only_the_one_writer_commits_truncates_and_leaves(pages, page):
    pages.commit(page, WRITER, 10)
    for use in (
        lambda: pages.commit(page, OTHER, 11),
        lambda: pages.truncate(page, OTHER, 5),
        lambda: pages.abandon(page, OTHER),
        lambda: pages.disown(page, OTHER),
    ):
        with pytest.raises(ProtectedRangeError):
            use()
    assert (page.writer, page.committed) == (WRITER, 10)


@pytest.mark.parametrize("columns", [9, 65])
def test_a_commit_moves_forward_within_the_page(pages, page, columns):
    pages.commit(page, WRITER, 10)
    with pytest.raises(TransitionError, match="commit to column"):
        pages.commit(page, WRITER, columns)


def test_a_full_page_has_no_writer(pages, page):
    pages.commit(page, WRITER, 64)
    assert (page.writer, page.holds, page.protected) == (None, [64], 64)


def test_the_writer_appends_beside_a_reader_but_goes_back_only_to_it(pages, page):
    pages.commit(page, WRITER, 40)
    pages.hold(page, 40)
    pages.commit(page, WRITER, 50)
    with pytest.raises(ProtectedRangeError, match="column 39 of 40"):
        pages.truncate(page, WRITER, 39)
    pages.truncate(page, WRITER, 40)
    pages.unhold(page, 40)
    pages.truncate(page, WRITER, 39)
    assert page.committed == 39


def test_the_protected_columns_are_those_of_the_furthest_need(pages, page):
    pages.commit(page, WRITER, 60)
    pages.hold(page, 20)
    pages.hold(page, 40)
    pin = pages.pin(page, 55)
    assert page.protected == 55
    pages.unpin(pin)
    assert page.protected == 40
    pages.unhold(page, 40)
    assert page.protected == 20


@pytest.mark.parametrize("columns", [0, 11])
def test_a_hold_is_on_committed_columns(pages, page, columns):
    pages.commit(page, WRITER, 10)
    with pytest.raises(TransitionError, match="hold on"):
        pages.hold(page, columns)


def test_a_new_writer_needs_that_nobody_needs_more(pages, page):
    pages.commit(page, WRITER, 50)
    pages.hold(page, 40)
    assert not pages.may_own(page, held=40, columns=40), "a writer is there"
    pages.disown(page, WRITER)
    assert pages.may_own(page, held=50, columns=50)
    assert not pages.may_own(page, held=40, columns=40), "another holds 50"
    with pytest.raises(ProtectedRangeError, match="shared past column 40"):
        pages.own(page, 40, 40, OTHER)
    pages.unhold(page, 50)
    pages.own(page, 40, 40, OTHER)
    assert (page.writer, page.committed, page.holds) == (OTHER, 40, [])


def test_a_pin_hinders_a_new_writer_below_it(pages, page):
    pages.commit(page, WRITER, 50)
    pages.disown(page, WRITER)
    pages.pin(page, 45)
    assert not pages.may_own(page, held=50, columns=44)
    assert pages.may_own(page, held=50, columns=45)


def test_a_replica_of_an_older_epoch_is_not_valid(pages, page):
    pages.commit(page, WRITER, 50)
    page.device.epoch -= 1
    assert not page.on_device(1)


def test_a_dead_page_is_stale_to_every_use(pages, page):
    pages.abandon(page, WRITER)
    for use in (
        lambda: pages.abandon(page, WRITER),
        lambda: pages.hold(page, 1),
        lambda: pages.unhold(page, 1),
        lambda: pages.pin(page, 0),
        lambda: pages.unpin(PagePin(page, 0)),
    ):
        with pytest.raises(StaleHandleError, match="was freed"):
            use()


def test_holds_and_pins_end_once(pages, page):
    pages.commit(page, WRITER, 10)
    pages.hold(page, 10)
    pages.unhold(page, 10)
    with pytest.raises(StaleHandleError):
        pages.unhold(page, 10)
    pin = pages.pin(page, 10)
    pages.unpin(pin)
    with pytest.raises(StaleHandleError):
        pages.unpin(pin)
    with pytest.raises(TransitionError, match="pin on 11 columns"):
        pages.pin(page, 11)


def test_random_histories_keep_the_books(explore, new_pool, grant_of):
    class Machine(RuleBasedStateMachine):
        """One page: its committed length, and the needs on it as a plain list."""

        def __init__(self) -> None:
            super().__init__()
            pool = new_pool(1)
            self.pages = LogicalPages(pool)
            self.page = self.pages.create(grant_of(pool, 1).draw("main"), WRITER)
            self.committed, self.writes = 0, True
            self.holds: list[int] = []
            self.pins: list[PagePin] = []

        def furthest(self) -> int:
            return max([0, *self.holds, *(pin.columns for pin in self.pins)])

        @precondition(lambda self: self.writes)
        @rule(columns=st.integers(1, 64))
        def commit(self, columns: int) -> None:
            if columns < self.committed:
                with pytest.raises(TransitionError):
                    self.pages.commit(self.page, WRITER, columns)
                return
            self.pages.commit(self.page, WRITER, columns)
            self.committed = columns
            if columns == 64:
                self.writes = False
                self.holds.append(64)

        @precondition(lambda self: self.writes)
        @rule(columns=st.integers(0, 64))
        def truncate(self, columns: int) -> None:
            if columns < self.furthest():
                with pytest.raises(ProtectedRangeError):
                    self.pages.truncate(self.page, WRITER, columns)
            else:
                self.pages.truncate(self.page, WRITER, columns)
                self.committed = min(self.committed, columns)

        @precondition(lambda self: self.committed)
        @rule(data=st.data(), pins=st.booleans())
        def need(self, data, pins: bool) -> None:
            columns = data.draw(st.integers(1, self.committed))
            if pins:
                self.pins.append(self.pages.pin(self.page, columns))
            else:
                self.pages.hold(self.page, columns)
                self.holds.append(columns)

        @precondition(lambda self: len(self.holds) > (not self.writes))
        @rule(pick=st.integers(0, 99))
        def unhold(self, pick: int) -> None:
            self.pages.unhold(self.page, self.holds.pop(pick % len(self.holds)))

        @precondition(lambda self: self.pins)
        @rule(pick=st.integers(0, 99))
        def unpin(self, pick: int) -> None:
            self.pages.unpin(self.pins.pop(pick % len(self.pins)))

        @precondition(lambda self: not self.writes)
        @rule(pick=st.integers(0, 99), columns=st.integers(1, 63))
        def own(self, pick: int, columns: int) -> None:
            held = self.holds[pick % len(self.holds)]
            columns = min(columns, held)
            rest = [*self.holds, *(pin.columns for pin in self.pins)]
            rest.remove(held)
            if max(rest, default=0) > columns:
                with pytest.raises(ProtectedRangeError):
                    self.pages.own(self.page, held, columns, WRITER)
                return
            self.pages.own(self.page, held, columns, WRITER)
            self.holds.remove(held)
            self.committed, self.writes = min(self.committed, columns), True

        @invariant()
        def books(self) -> None:
            self.pages.check()
            assert self.page.alive
            assert self.page.committed == self.committed
            assert self.page.protected == self.furthest()
            assert self.page.refs == len(self.holds) + self.writes
            assert self.page.on_device(self.committed)

    explore(Machine)
