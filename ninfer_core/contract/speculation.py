"""Draft backends: proposals for the target to verify, inside a Program.

A backend never samples the target and never decides acceptance. Everything it does in a round runs
inside graph capture: it enqueues, allocates nothing and takes lengths from the device.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Protocol

from ninfer_core.contract.resources import ResourceVector
from ninfer_core.contract.units import UnitKind


@dataclass(frozen=True, slots=True)
class TargetFeatures:
    """What the target must hand over: its post-norm hidden rows, residuals after these layers."""

    final_hidden_post_norm: bool = False
    taps: tuple[int, ...] = ()


class DraftPhase(enum.Enum):
    """Whether drafts are made before the target runs, or after it accepted the round before."""

    BEFORE_TARGET = "before_target"
    AFTER_ACCEPT = "after_accept"


@dataclass(frozen=True, slots=True)
class TargetParts:
    """The target's pieces that a drafter may call: embedding, head, attention layer, rope."""

    embed: Any
    head: Any
    full_attention_layer: Any
    rope: Any


@dataclass(frozen=True, slots=True)
class Proposal:
    """``drafts`` i32[B, K] and ``q``, the law they were drawn from.

    ``q`` is an ``ninfer_core.ops.contracts.values.DraftLaw``; None when the drafts are one-hot,
    that is each is its drafter's certain choice.
    """

    drafts: Any
    q: Any | None = None


class DraftBackend(Protocol):
    """One drafter beside one target, with a state of its own at the same frontier."""

    @property
    def phase(self) -> DraftPhase: ...

    def needs(self) -> TargetFeatures: ...

    def bind(self, parameters: Any, target: TargetParts, store: Any) -> None:
        """Take the drafter's parameters, the target's parts and room in ``store``; once."""
        ...

    def observe(self, chunk: Any) -> None:
        """Take in executed rows of prefill, replay and plain rounds."""
        ...

    def align(self, accepted: Any) -> None:
        """Bring the drafter's own state to the accepted frontier."""
        ...

    def propose(self, rows: Any) -> Proposal:
        """Up to K drafts per row from the accepted frontier."""
        ...

    def normalise(self, row: int) -> None:
        """Settle one row so that it can be captured at its frontier."""
        ...

    def permit_growth(self, unit: UnitKind, tokens: int) -> ResourceVector:
        """What a unit of ``tokens`` may add to the drafter's own pools at most."""
        ...
