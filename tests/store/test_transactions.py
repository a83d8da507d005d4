"""The context transaction: every edge of its table, its single end, what the end gives back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.store import (
    LEGAL_EDGES,
    CopyTicket,
    Demand,
    Ledger,
    StaleHandleError,
    Transaction,
    TransactionGate,
    TransactionState,
    TransitionError,
)

S = TransactionState


class CountingLease:
    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1


@pytest.fixture
def gate() -> TransactionGate[str]:
    return TransactionGate()


def arrive(gate: TransactionGate[str], state: TransactionState) -> Transaction[str]:
    """A transaction brought to ``state`` by the public operations."""
    transaction = gate.plan("bind")
    if state in (S.BEGUN, S.COPYING, S.DRAINING, S.COMPLETE):
        transaction.begin()
    if state in (S.COPYING, S.DRAINING):
        ticket = transaction.start_copy()
        if state is S.DRAINING:
            transaction.cancel()
        transaction.finish_copy(ticket)
    if state is S.COMPLETE:
        transaction.complete("done")
    if state is S.ABORTED:
        transaction.abort("nothing")
    assert transaction.state is state
    return transaction


OPERATIONS = {
    S.BEGUN: lambda transaction: transaction.begin(),
    S.COPYING: lambda transaction: transaction.start_copy(),
    S.COMPLETE: lambda transaction: transaction.complete("done"),
    S.ABORTED: lambda transaction: transaction.abort("nothing"),
}


@pytest.mark.parametrize(("start", "target"), list(itertools.product(S, OPERATIONS)))
def test_exactly_the_legal_edges_can_be_taken(gate, start, target):
    transaction = arrive(gate, start)
    in_copies = start is S.COPYING and target in (S.COPYING, S.ABORTED)
    if target in LEGAL_EDGES[start] or in_copies:
        OPERATIONS[target](transaction)
        assert transaction.state is target
    else:
        with pytest.raises(TransitionError):
            OPERATIONS[target](transaction)
        assert transaction.state is start


def test_the_table_is_that_of_the_contract():
    edges = {(a, b) for a, targets in LEGAL_EDGES.items() for b in targets}
    assert edges == {
        (S.PLANNED, S.BEGUN),
        (S.PLANNED, S.ABORTED),
        (S.BEGUN, S.COPYING),
        (S.BEGUN, S.COMPLETE),
        (S.BEGUN, S.ABORTED),
        (S.COPYING, S.DRAINING),
        (S.COPYING, S.COMPLETE),
        (S.DRAINING, S.COMPLETE),
        (S.DRAINING, S.ABORTED),
    }


def test_one_transaction_is_open_at_a_time(gate):
    first = gate.plan("bind")
    with pytest.raises(TransitionError, match="capture: a bind transaction is open"):
        gate.plan("capture")
    first.abort("nothing")
    assert gate.open is None
    assert gate.plan("capture") is gate.open


@pytest.mark.parametrize("ending", ["complete", "abort"])
def test_the_end_settles_the_reservation_and_releases_each_lease_once(gate, new_pool, ending):
    pool = new_pool(4)
    ledger = Ledger([pool])
    transaction = gate.plan("bind", ledger.reserve(Demand({"main": 3})))
    transaction.begin()
    leases = [CountingLease(), CountingLease()]
    for lease in leases:
        transaction.lease(lease)
    pool.release(transaction.reservation.draw("main"))
    getattr(transaction, ending)("result")
    assert [lease.released for lease in leases] == [1, 1]
    assert (pool.available, ledger.open_reservations) == (4, 0)
    assert transaction.result == "result"
    with pytest.raises(TransitionError):
        _ = transaction.reservation
    for again in (transaction.complete, transaction.abort):
        with pytest.raises(EngineFailure):
            again("second")
    assert transaction.result == "result"


def test_there_is_no_result_before_the_end(gate):
    with pytest.raises(TransitionError, match="planned; it has no result"):
        _ = gate.plan("bind").result


def test_cancel_before_copies_allows_the_abort_at_once(gate):
    transaction = arrive(gate, S.BEGUN)
    assert transaction.cancel()
    with pytest.raises(TransitionError, match="cancelled"):
        transaction.start_copy()
    transaction.abort("nothing")


def test_cancel_of_a_plan_keeps_it_from_beginning(gate):
    transaction = gate.plan("bind")
    assert transaction.cancel()
    with pytest.raises(TransitionError, match="cancelled"):
        transaction.begin()


def test_cancel_after_copies_started_waits_for_them(gate):
    transaction = arrive(gate, S.BEGUN)
    tickets = [transaction.start_copy(), transaction.start_copy()]
    assert not transaction.cancel()
    assert transaction.state is S.DRAINING
    for ticket in tickets:
        with pytest.raises(TransitionError, match="in flight"):
            transaction.abort("nothing")
        transaction.finish_copy(ticket)
    transaction.abort("nothing")


def test_a_drained_demotion_may_be_kept(gate):
    transaction = arrive(gate, S.DRAINING)
    assert transaction.complete("what was copied") == "what was copied"


def test_a_failed_copy_stops_further_ones_and_is_remembered(gate):
    transaction = arrive(gate, S.BEGUN)
    first, second = transaction.start_copy(), transaction.start_copy()
    failure = OSError("bus error")
    transaction.finish_copy(first, failure)
    with pytest.raises(TransitionError):
        transaction.start_copy()
    transaction.finish_copy(second, OSError("later"))
    assert transaction.failure is failure
    transaction.abort("nothing")


def test_nothing_ends_with_a_copy_in_flight(gate):
    transaction = arrive(gate, S.BEGUN)
    transaction.start_copy()
    for end in (transaction.complete, transaction.abort):
        with pytest.raises(TransitionError, match="1 copies are in flight"):
            end("early")


def test_sources_are_leased_between_begin_and_the_copies(gate):
    planned = gate.plan("bind")
    with pytest.raises(TransitionError, match="leased before"):
        planned.lease(CountingLease())
    planned.begin()
    planned.start_copy()
    with pytest.raises(TransitionError, match="leased before"):
        planned.lease(CountingLease())


def test_a_ticket_is_finished_once_and_by_its_own_transaction(gate):
    transaction = arrive(gate, S.BEGUN)
    ticket = transaction.start_copy()
    with pytest.raises(StaleHandleError):
        transaction.finish_copy(CopyTicket(ticket.transaction + 1, ticket.number))
    transaction.finish_copy(ticket)
    with pytest.raises(StaleHandleError):
        transaction.finish_copy(ticket)


@pytest.mark.parametrize("state", [S.COMPLETE, S.ABORTED])
def test_what_has_ended_cannot_be_cancelled(gate, state):
    with pytest.raises(TransitionError, match="already ended"):
        arrive(gate, state).cancel()


def test_a_refused_abort_leaves_the_transaction_open(gate):
    transaction = arrive(gate, S.BEGUN)
    transaction.start_copy()
    with pytest.raises(TransitionError):
        transaction.abort("early")
    assert (gate.open, transaction.state) == (transaction, S.COPYING)
    gate.check()


def test_random_histories_end_once_and_return_everything(explore, new_pool):
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.gate: TransactionGate[str] = TransactionGate()
            self.pool = new_pool(5)
            self.ledger = Ledger([self.pool])
            self.open: Transaction[str] | None = None
            self.tickets: list[CopyTicket] = []
            self.leases: list[CountingLease] = []
            self.ended = 0

        @rule(pages=st.integers(0, 5))
        def plan(self, pages: int) -> None:
            if self.open is None:
                self.open = self.gate.plan("bind", self.ledger.reserve(Demand({"main": pages})))

        @precondition(lambda self: self.open)
        @rule()
        def advance(self) -> None:
            if self.open.state is S.PLANNED and not self.open.cancelled:
                self.open.begin()
                lease = CountingLease()
                self.leases.append(lease)
                self.open.lease(lease)
            elif self.open.state in (S.BEGUN, S.COPYING) and not self.open.cancelled:
                self.tickets.append(self.open.start_copy())

        @precondition(lambda self: self.tickets)
        @rule(pick=st.integers(0, 9), fails=st.booleans())
        def finish_copy(self, pick: int, fails: bool) -> None:
            ticket = self.tickets.pop(pick % len(self.tickets))
            self.open.finish_copy(ticket, OSError("lost") if fails and pick == 9 else None)

        @precondition(lambda self: self.open)
        @rule()
        def cancel(self) -> None:
            assert self.open.cancel() == (not self.tickets)

        @precondition(lambda self: self.open and not self.tickets)
        @rule(abort=st.booleans())
        def end(self, abort: bool) -> None:
            if abort or self.open.state is S.PLANNED:
                self.open.abort("nothing")
            else:
                self.open.complete("done")
            self.open = None
            self.ended += 1

        @invariant()
        def books(self) -> None:
            self.gate.check()
            self.ledger.check()
            assert self.gate.open is self.open
            held = [lease for lease in self.leases if not lease.released]
            assert all(lease.released <= 1 for lease in self.leases)
            assert len(held) <= (self.open is not None)
            if self.open is None:
                assert self.pool.available == 5
            else:
                assert self.open.copies_in_flight == len(self.tickets)

    explore(Machine)
