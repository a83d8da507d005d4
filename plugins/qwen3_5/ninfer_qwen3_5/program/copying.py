"""Context transactions that wait for copies without blocking."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from ninfer_core.contract.checkpoints import Aborted, ContextResult, PlanKind
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.device.errors import DeviceLost
from ninfer_core.store.demand import Demand
from ninfer_core.store.reservations import Reservation
from ninfer_core.store.transactions import CopyTicket, Transaction, TransactionGate
from ninfer_qwen3_5.program.stores import Stores
from ninfer_qwen3_5.program.transfers import Transfer

PORTION = 640
"""Pages that are taken in, or cleared, at once: each costs the host half a microsecond or more,
while rounds must be launched."""

_NAP = 50e-6
"""Seconds that other threads get before a long step of the host. It begins where a round has just
been published: whoever waits for its tokens waits for the interpreter's lock as well."""

StoreTransaction = Transaction[ContextResult]
Gate = TransactionGate[ContextResult]


class Copying(Protocol):
    """What one transaction moves."""

    @property
    def kind(self) -> PlanKind: ...

    def demand(self) -> Demand:
        """What it reserves before anything else."""
        ...

    def start(self, transaction: StoreTransaction) -> Transfer:
        """Lease sources, draw destinations and enqueue the copies."""
        ...

    def take_in(self, transaction: StoreTransaction, most: int) -> bool:
        """The copies have landed whole: let up to ``most`` pages own theirs. Whether no more are
        left."""
        ...

    def publish(self, transaction: StoreTransaction) -> ContextResult:
        """All are taken in: complete the transaction."""
        ...

    def clear(self, most: int) -> bool:
        """It is complete: give back the places of up to ``most`` pages that nobody needs any more.
        Whether no more are left."""
        ...

    def undo(self) -> None:
        """Nothing is on its way any more: give back what was drawn, however far it came."""
        ...


class Mover:
    """Opens transactions that copy, one at a time, and ends the open one with the Program."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._gate: Gate = Gate()
        self._open: CopyTransaction | None = None

    def open(self, work: Copying, ended: Callable[[], None]) -> CopyTransaction:
        """``ended`` is called when its result is there."""
        self._open = CopyTransaction(work, self._gate, self._stores, ended)
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open.abandon()

    def check(self) -> None:
        self._gate.check()


class CopyTransaction:
    """The first ``advance`` reserves and enqueues, later ones ask whether the copies have landed.
    Then pages are taken in, and behind that cleared, a portion each time.

    Cancelled before that it reserves nothing; cancelled later, or with a copy that failed, it waits
    for what is on its way, gives everything back and ends in Aborted: all stands as before.
    """

    def __init__(
        self, work: Copying, gate: Gate, stores: Stores, ended: Callable[[], None]
    ) -> None:
        self.kind = work.kind
        self._work = work
        self._gate = gate
        self._stores = stores
        self._ended = ended
        self._closed = False
        self._cancelled = False
        self._transaction: StoreTransaction | None = None
        self._transfer: Transfer | None = None
        self._ticket: CopyTicket | None = None
        self._landed = False
        self._result: ContextResult | None = None

    def advance(self) -> ContextResult | None:
        """The result once the copies have landed and all is taken over; None until then."""
        if self._closed:
            raise EngineFailure(f"a {self.kind.value} transaction was advanced past its result")
        if self._transfer is None:
            refusal = self._start()
            if refusal is not None:
                return self._close(Aborted(f"the {self.kind.value} {refusal}"))
        assert self._transfer is not None
        assert self._transaction is not None
        if not self._landed:
            aborted = self._land(self._transaction, self._transfer)
            if not self._landed:
                return aborted
        if self._result is None and self._work.take_in(self._transaction, PORTION):
            self._result = self._work.publish(self._transaction)
        if self._result is None or not self._work.clear(PORTION):
            return None
        return self._close(self._result)

    def cancel(self) -> None:
        """Ask for the end. Never waits; after the result it does nothing."""
        self._cancelled = True
        if self._transaction is not None and not self._transaction.ended:
            self._transaction.cancel()

    def abandon(self) -> None:
        """End now, whatever it waits for: the Program closes. Idempotent."""
        if self._closed:
            return
        transaction, transfer = self._transaction, self._transfer
        if transfer is not None:
            with suppress(DeviceLost):
                transfer.wait()
        if transaction is not None and not transaction.ended:
            if self._ticket is not None and transaction.copies_in_flight:
                transaction.finish_copy(self._ticket)
            transaction.cancel()
            self._work.undo()
            transaction.abort(Aborted(f"the {self.kind.value} ended with the program"))
        self._closed = True

    def _start(self) -> str | None:
        """Why it cannot start, or None."""
        if self._cancelled:
            return "was cancelled before it started"
        time.sleep(_NAP)
        grant = self._stores.reserve(self._work.demand())
        if not isinstance(grant, Reservation):
            return f"found that {grant.axis} ran out after it was planned"
        self._transaction = self._gate.plan(self.kind.value, grant)
        self._transaction.begin()
        self._transfer = self._work.start(self._transaction)
        self._ticket = self._transaction.start_copy()
        return None

    def _land(self, transaction: StoreTransaction, transfer: Transfer) -> ContextResult | None:
        """Aborted when the copies have landed and are not wanted, or not whole."""
        if not transfer.done():
            return None
        assert self._ticket is not None
        transaction.finish_copy(self._ticket, transfer.failure)
        if not transaction.cancelled and transaction.failure is None:
            time.sleep(_NAP)
            self._landed = True
            return None
        failed = f"failed: {transaction.failure}" if transaction.failure else "was cancelled"
        self._work.undo()
        return self._close(transaction.abort(Aborted(f"the {self.kind.value} {failed}")))

    def _close(self, result: ContextResult) -> ContextResult:
        self._closed = True
        self._ended()
        return result
