"""The one open context transaction: its states, what it holds, and its single result.

::

    planned ──▶ begun ──▶ copying ──▶ complete
       │          │ └───────────────────▲
       ▼          ▼          ▼          │
    aborted ◀── aborted   draining ──▶ complete | aborted

``draining`` is ``copying`` after a cancel or a failed copy: copies in flight are waited for, none
is added. What is finished by then may still be kept, so draining can end either way.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, NamedTuple, Protocol, TypeVar

from ninfer_core.store.errors import StaleHandleError, TransitionError, require
from ninfer_core.store.reservations import Reservation

R = TypeVar("R")


class TransactionState(enum.Enum):
    PLANNED = "planned"
    BEGUN = "begun"
    COPYING = "copying"
    DRAINING = "draining"
    COMPLETE = "complete"
    ABORTED = "aborted"


_S = TransactionState

LEGAL_EDGES: Mapping[TransactionState, frozenset[TransactionState]] = MappingProxyType(
    {
        _S.PLANNED: frozenset({_S.BEGUN, _S.ABORTED}),
        _S.BEGUN: frozenset({_S.COPYING, _S.COMPLETE, _S.ABORTED}),
        _S.COPYING: frozenset({_S.DRAINING, _S.COMPLETE}),
        _S.DRAINING: frozenset({_S.COMPLETE, _S.ABORTED}),
        _S.COMPLETE: frozenset(),
        _S.ABORTED: frozenset(),
    }
)
"""What may follow each state; the last two are ends."""


class Lease(Protocol):
    """A hold on a source that must end exactly once."""

    def release(self) -> None: ...


class CopyTicket(NamedTuple):
    """One copy in flight of one transaction."""

    transaction: int
    number: int


class Transaction(Generic[R]):
    """A transaction that holds leases on its sources and a reservation for its destinations.

    Its user moves it along and ends it by :meth:`complete` or :meth:`abort`; either settles the
    reservation, releases the leases and frees the gate. :meth:`cancel` never blocks: before a copy
    is in flight the user may abort at once, afterwards only when :attr:`copies_in_flight` is 0.
    """

    def __init__(
        self, gate: TransactionGate[R], serial: int, kind: str, reservation: Reservation | None
    ) -> None:
        self.kind = kind
        self.serial = serial
        self.state = TransactionState.PLANNED
        self.failure: BaseException | None = None
        self.cancelled = False
        self._gate = gate
        self._reservation = reservation
        self._leases: list[Lease] = []
        self._tickets: set[CopyTicket] = set()
        self._copies = 0
        self._result: R | None = None

    @property
    def reservation(self) -> Reservation:
        """Where destinations are drawn from while the transaction is open."""
        if self._reservation is None:
            raise TransitionError(f"{self.kind}: no reservation, or already settled")
        return self._reservation

    @property
    def copies_in_flight(self) -> int:
        return len(self._tickets)

    @property
    def ended(self) -> bool:
        return not LEGAL_EDGES[self.state]

    @property
    def result(self) -> R:
        """The one result, once ended."""
        if self._result is None:
            raise TransitionError(f"{self.kind} is {self.state.value}; it has no result yet")
        return self._result

    def begin(self) -> None:
        """From here on the transaction may lease and copy."""
        self._enter(TransactionState.BEGUN)

    def lease(self, lease: Lease) -> None:
        """Hold a source until the end. On refusal the lease stays with the caller."""
        if self.state is not TransactionState.BEGUN:
            raise TransitionError(f"{self.kind}: sources are leased before the copies start")
        self._leases.append(lease)

    def start_copy(self) -> CopyTicket:
        """Count a copy that was enqueued. Refused once cancelled or failed."""
        if self.state is not TransactionState.COPYING:
            self._enter(TransactionState.COPYING)
        self._copies += 1
        ticket = CopyTicket(self.serial, self._copies)
        self._tickets.add(ticket)
        return ticket

    def finish_copy(self, ticket: CopyTicket, failure: BaseException | None = None) -> None:
        """The copy's event was seen; a ``failure`` stops further copies."""
        if ticket not in self._tickets:
            raise StaleHandleError(f"{ticket} is not in flight")
        self._tickets.remove(ticket)
        if failure is not None:
            self.failure = self.failure or failure
            self._drain()

    def cancel(self) -> bool:
        """Ask for the end; True when nothing is in flight, so that it can be aborted now."""
        if self.ended:
            raise TransitionError(f"{self.kind} has already ended as {self.state.value}")
        self.cancelled = True
        self._drain()
        return not self._tickets

    def complete(self, result: R) -> R:
        """End with everything (after draining: with what was finished) in place."""
        return self._end(TransactionState.COMPLETE, result)

    def abort(self, result: R) -> R:
        """End with what stands now; the user has undone what it had not published."""
        if not self._tickets:
            self._drain()
        return self._end(TransactionState.ABORTED, result)

    def _drain(self) -> None:
        if self.state is TransactionState.COPYING:
            self._enter(TransactionState.DRAINING)

    def _enter(self, state: TransactionState) -> None:
        if state not in LEGAL_EDGES[self.state]:
            raise TransitionError(f"{self.kind}: {self.state.value} may not become {state.value}")
        starts = state in (TransactionState.BEGUN, TransactionState.COPYING)
        if starts and self.cancelled:
            raise TransitionError(f"{self.kind} was cancelled; nothing more may start")
        self.state = state

    def _end(self, state: TransactionState, result: R) -> R:
        if self._tickets:
            raise TransitionError(f"{self.kind}: {len(self._tickets)} copies are in flight")
        self._enter(state)
        self._result = result
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()
        if self._reservation is not None:
            self._reservation.settle()
            self._reservation = None
        self._gate._close(self)
        return result


class TransactionGate(Generic[R]):
    """Lets one context transaction be open at a time, from its plan to its end.

    ``R`` is the union of the results that its transactions end in.
    """

    def __init__(self) -> None:
        self._open: Transaction[R] | None = None
        self._serial = 0

    @property
    def open(self) -> Transaction[R] | None:
        return self._open

    def plan(self, kind: str, reservation: Reservation | None = None) -> Transaction[R]:
        """Open a transaction that takes ``reservation`` over. Refused while one is open."""
        if self._open is not None:
            raise TransitionError(f"{kind}: a {self._open.kind} transaction is open")
        self._serial += 1
        self._open = Transaction(self, self._serial, kind, reservation)
        return self._open

    def check(self) -> None:
        if self._open is not None:
            require(not self._open.ended, "an ended transaction leaves the gate")

    def _close(self, transaction: Transaction[R]) -> None:
        if self._open is not transaction:
            raise StaleHandleError(f"{transaction.kind} is not the open transaction")
        self._open = None
