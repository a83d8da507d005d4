"""State slots: one writer while live, immutable once published, never had without content."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninfer_core.store import (
    ClearState,
    CopyState,
    Demand,
    Ledger,
    PermitViolationError,
    ProtectedRangeError,
    Reservation,
    Slot,
    StaleHandleError,
    StateSlots,
    TransitionError,
)

OWNER = "sequence"


@pytest.fixture
def slots(new_pool):
    return StateSlots(new_pool(3, "state"))


@pytest.fixture
def grant(slots, grant_of):
    return grant_of(slots.pool, 3)


def test_the_scratch_row_lies_past_the_capacity(slots):
    assert (slots.pool.capacity, slots.rows, slots.scratch) == (3, 4, 3)


def test_every_way_to_a_slot_says_how_it_is_filled(slots, grant):
    first, clear = slots.create(OWNER, grant)
    second, copy = slots.fork(first, "other", grant)
    assert clear == ClearState("state", first.index)
    assert copy == CopyState("state", first.index, second.index)
    assert (first.index, second.index) == (0, 1)


def test_only_the_owner_writes_and_only_while_live(slots, grant):
    slot, _ = slots.create(OWNER, grant)
    slots.require_writer(slot, OWNER)
    with pytest.raises(ProtectedRangeError, match="may not be written by 'other'"):
        slots.require_writer(slot, "other")
    slots.freeze(slot, OWNER)
    for owner in (OWNER, None):
        with pytest.raises(ProtectedRangeError):
            slots.require_writer(slot, owner)
    with pytest.raises(ProtectedRangeError):
        slots.freeze(slot, OWNER)


def test_move_keeps_the_place_and_outdates_the_old_handle(slots, grant):
    old, _ = slots.create(OWNER, grant)
    slots.freeze(old, OWNER)
    new = slots.move(old, "next")
    assert (new.index, slots.pool.allocated) == (old.index, 1)
    slots.require_writer(new, "next")
    for use in (slots.release, slots.hold, slots.pin, slots.may_move):
        with pytest.raises(StaleHandleError):
            use(old)


def test_a_shared_read_or_live_image_does_not_move(slots, grant):
    slot, _ = slots.create(OWNER, grant)
    assert not slots.may_move(slot), "live"
    slots.freeze(slot, OWNER)
    slots.hold(slot)
    assert not slots.may_move(slot), "shared"
    slots.release(slot)
    slots.pin(slot)
    assert not slots.may_move(slot), "read by a copy"
    with pytest.raises(ProtectedRangeError):
        slots.move(slot, "next")
    slots.unpin(slot)
    assert slots.may_move(slot)


def test_a_live_image_is_neither_shared_nor_pinned(slots, grant):
    slot, _ = slots.create(OWNER, grant)
    for use in (slots.hold, slots.pin):
        with pytest.raises(TransitionError):
            use(slot)


def test_the_last_holder_or_pin_frees_the_slot(slots, grant):
    slot, _ = slots.create(OWNER, grant)
    slots.freeze(slot, OWNER)
    slots.hold(slot)
    slots.pin(slot)
    slots.release(slot)
    slots.release(slot)
    assert slots.pool.allocated == 1
    with pytest.raises(TransitionError):
        slots.hold(slot)
    with pytest.raises(StaleHandleError, match="no holder"):
        slots.release(slot)
    slots.unpin(slot)
    assert slots.pool.allocated == 0
    for use in (slots.release, slots.unpin):
        with pytest.raises(StaleHandleError):
            use(slot)


def test_a_slot_needs_a_reservation(slots, grant_of):
    grant = grant_of(slots.pool, 0)
    with pytest.raises(PermitViolationError):
        slots.receive(OWNER, grant)
    slots.check()


def test_unpin_needs_a_pin(slots, grant):
    slot, _ = slots.create(OWNER, grant)
    slots.freeze(slot, OWNER)
    with pytest.raises(StaleHandleError, match="not pinned"):
        slots.unpin(slot)


def test_random_histories_keep_the_books(explore, new_pool):
    class Machine(RuleBasedStateMachine):
        """Content is a number per row; a live image changes, a published one must not."""

        def __init__(self) -> None:
            super().__init__()
            self.slots = StateSlots(new_pool(4, "state"))
            self.ledger = Ledger([self.slots.pool])
            self.rows = [-1] * self.slots.rows
            self.live: dict[Slot, int] = {}
            self.published: dict[Slot, list[int]] = {}
            self.clock = 0

        def grant(self) -> Reservation | None:
            answer = self.ledger.reserve(Demand({"state": 1}))
            full = len(self.live) + len(self.published) == 4
            assert isinstance(answer, Reservation) != full
            return answer if isinstance(answer, Reservation) else None

        def pick(self, group: dict, number: int) -> Slot:
            return list(group)[number % len(group)]

        @rule()
        def create(self) -> None:
            grant = self.grant()
            if grant is not None:
                slot, clear = self.slots.create(OWNER, grant)
                self.rows[clear.slot] = 0
                self.live[slot] = 0
                grant.settle()

        @precondition(lambda self: self.live)
        @rule(number=st.integers(0, 9))
        def write(self, number: int) -> None:
            slot = self.pick(self.live, number)
            self.slots.require_writer(slot, OWNER)
            self.clock += 1
            self.rows[slot.index] = self.live[slot] = self.clock

        @precondition(lambda self: self.live or self.published)
        @rule(number=st.integers(0, 9))
        def fork(self, number: int) -> None:
            source = self.pick({**self.live, **self.published}, number)
            grant = self.grant()
            if grant is not None:
                slot, copy = self.slots.fork(source, OWNER, grant)
                self.rows[copy.target] = self.rows[copy.source]
                self.live[slot] = self.rows[source.index]
                grant.settle()

        @precondition(lambda self: self.live)
        @rule(number=st.integers(0, 9))
        def freeze(self, number: int) -> None:
            slot = self.pick(self.live, number)
            self.slots.freeze(slot, OWNER)
            self.published[slot] = [self.live.pop(slot), 1]

        @precondition(lambda self: self.published)
        @rule(number=st.integers(0, 9), more=st.booleans())
        def hold_or_release(self, number: int, more: bool) -> None:
            slot = self.pick(self.published, number)
            (self.slots.hold if more else self.slots.release)(slot)
            self.published[slot][1] += 1 if more else -1
            if not self.published[slot][1]:
                del self.published[slot]

        @precondition(lambda self: self.published)
        @rule(number=st.integers(0, 9))
        def move(self, number: int) -> None:
            slot = self.pick(self.published, number)
            value, holders = self.published[slot]
            assert self.slots.may_move(slot) == (holders == 1)
            if holders == 1:
                del self.published[slot]
                self.live[self.slots.move(slot, OWNER)] = value

        @invariant()
        def books(self) -> None:
            self.slots.check()
            assert self.slots.pool.allocated == len(self.live) + len(self.published)
            for slot, value in self.live.items():
                assert self.rows[slot.index] == value
            for slot, (value, _) in self.published.items():
                assert self.rows[slot.index] == value

    explore(Machine)
