"""What the store raises. All are engine failures: the caller broke a rule, or a ledger is wrong.

Scarcity is not an error: a request that does not fit is answered with a
:class:`~ninfer_core.store.demand.Shortfalls`.
"""

from __future__ import annotations

from ninfer_core.contract.errors import EngineFailure


class StoreInvariantError(EngineFailure):
    """A ``check()`` found a ledger that contradicts itself; the message names the invariant."""


class StaleHandleError(EngineFailure):
    """A handle names another owner, another generation, or something already released."""


class PermitViolationError(EngineFailure):
    """More was drawn than a reservation granted."""


class ProtectedRangeError(EngineFailure):
    """A write or truncation would touch content that somebody else still needs."""


class TransitionError(EngineFailure):
    """An operation that the object's present state does not allow."""


def require(holds: bool, invariant: str) -> None:
    """Raise :class:`StoreInvariantError` naming ``invariant`` unless it holds."""
    if not holds:
        raise StoreInvariantError(f"store invariant broken: {invariant}")
