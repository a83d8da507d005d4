"""Typed amounts, identities and refusals of physical resources.

The engine compares vectors and passes handles around; only the Program knows what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ninfer_core.contract.draft_costs import DraftCosts

PAGE_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceVector:
    """Amounts per axis: device state slots, host bytes, pages of :data:`PAGE_TOKENS` per pool."""

    state_slots: int = 0
    host_bytes: int = 0
    pages: Mapping[str, int] = field(default_factory=dict)

    def amount(self, axis: str) -> int:
        """The amount on ``axis``: ``state_slots``, ``host_bytes`` or the name of a page pool."""
        if axis == "state_slots":
            return self.state_slots
        return self.host_bytes if axis == "host_bytes" else self.pages.get(axis, 0)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Not now: ``axis`` lacks ``needed - available``; nothing is held."""

    axis: str
    needed: int
    available: int


@dataclass(frozen=True, slots=True)
class NeverFits:
    """Not ever: the request alone needs more of ``axis`` than its whole ``capacity``."""

    axis: str
    needed: int
    capacity: int


@dataclass(frozen=True, slots=True)
class SequenceHandle:
    """A resident sequence; a stale ``generation`` or a foreign ``owner`` is an EngineFailure."""

    owner: int
    index: int
    generation: int


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A published restore point. Same staleness rule as :class:`SequenceHandle`."""

    owner: int
    index: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """What was fixed at start. ``prefill_chunk`` in tokens; ``draft_tokens`` is the largest K, and
    ``draft_costs`` what drafts were measured to cost, None where that was not done.

    ``rounds_ahead`` is how many decode rounds may be enqueued behind one that is not collected:
    0, nothing is launched ahead, or 1.
    """

    max_context: int
    max_concurrency: int
    prefill_chunk: int
    vocab_rows: int
    draft_tokens: int = 0
    draft_costs: DraftCosts | None = None
    rounds_ahead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitySummary:
    """Physical totals and what is neither allocated nor reserved, as the stores say.

    ``kept`` is what of the totals lies beyond all that the lanes can use: room for kept contexts.
    """

    total: ResourceVector
    available: ResourceVector
    resident: int
    kept: ResourceVector = field(default_factory=ResourceVector)
    device_bytes: Mapping[str, int] = field(default_factory=dict)
