"""Sizes of the fake Program and its context transactions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ninfer_core.contract.checkpoints import Aborted, ContextResult, PlanKind, ResumeKind
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.testing.fake_faults import FaultPlan


@dataclass(slots=True)
class FakeConfig:
    """Sizes and manners of a fake Program. ``burst`` bounds the tokens of a decode round;
    ``bind_steps``/``pause_steps`` count ``advance`` calls; ``state_lag`` tokens of a kept end must
    be replayed; ``snapshot_on_device`` keeps a Snapshot's pages instead of host bytes;
    ``bind_whole_prompt`` wants room for the prompt before a request becomes resident;
    ``captures`` lets restore points be kept, in ``capture_steps``; ``demotes`` lets what is kept be
    copied to the host, in ``demote_steps``;
    ``reserve_resume`` False breaks the contract: a resume holds no room for what it rebuilds."""

    page_tokens: int = 4
    pages: int = 64
    slots: int = 8
    host: int = 0
    burst: int = 1
    bind_steps: int = 1
    pause_steps: int = 1
    state_lag: int = 0
    pause_kinds: frozenset[ResumeKind] = frozenset(ResumeKind)
    snapshot_on_device: bool = False
    bind_whole_prompt: bool = False
    reserve_resume: bool = True
    captures: bool = False
    capture_steps: int = 1
    demotes: bool = False
    demote_steps: int = 1


class TransactionOwner(Protocol):
    """Where a transaction is registered while it is open."""

    current: FakeTransaction | None
    faults: FaultPlan

    def abort_reason(self, kind: PlanKind) -> str | None: ...


class FakeTransaction:
    """Moves one step per ``advance``. Cancelled before the first step it undoes at once,
    afterwards at its end."""

    def __init__(
        self,
        kind: PlanKind,
        steps: int,
        apply: Callable[[], ContextResult],
        undo: Callable[[], None],
        owner: TransactionOwner,
    ) -> None:
        self.kind = kind
        self._left = steps
        self._untouched = True
        self._cancelled = False
        self._apply = apply
        self._undo = undo
        self._owner = owner

    def advance(self) -> ContextResult | None:
        if self._owner.current is not self:
            raise EngineFailure("a settled transaction was advanced")
        self._owner.faults.check("advance")
        self._left -= 1
        if self._left > 0 and not (self._cancelled and self._untouched):
            self._untouched = False
            return None
        self._owner.current = None
        reason = "cancelled" if self._cancelled else self._owner.abort_reason(self.kind)
        if reason is None:
            return self._apply()
        self._undo()
        return Aborted(reason)

    def cancel(self) -> None:
        self._cancelled = True
