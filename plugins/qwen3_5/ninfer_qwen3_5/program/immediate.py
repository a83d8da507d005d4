"""Context transactions that need no copy to land."""

from __future__ import annotations

from collections.abc import Callable

from ninfer_core.contract.checkpoints import Aborted, ContextResult, PlanKind
from ninfer_core.contract.errors import EngineFailure


class ImmediateTransaction:
    """A context transaction whose work is done at its first ``advance``."""

    def __init__(
        self, kind: PlanKind, work: Callable[[], ContextResult], ended: Callable[[], None]
    ) -> None:
        self.kind = kind
        self._work: Callable[[], ContextResult] | None = work
        self._ended = ended

    def advance(self) -> ContextResult:
        """The result, once."""
        if self._work is None:
            raise EngineFailure(f"a {self.kind.value} transaction was advanced past its result")
        work, self._work = self._work, None
        try:
            return work()
        finally:
            self._ended()

    def cancel(self) -> None:
        """Before the first ``advance``: the result becomes Aborted. Afterwards nothing is open."""
        if self._work is not None:
            kind = self.kind.value
            self._work = lambda: Aborted(f"the {kind} was cancelled before it started")
