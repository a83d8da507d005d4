"""How much of a device kept contexts get beside what the requests that run can need."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_core.contract.instance import Budget
from ninfer_core.contract.resources import PAGE_TOKENS

SLOTS_PER_LANE = 8
"""Checkpoints wanted for each lane: two or three of each of a few conversations."""

CONTEXTS_PER_LANE = 2
"""Full contexts of pages wanted for each lane beside its own."""

LARGEST_SHARE = 2
"""Kept contexts take at most one in so many bytes of what the running requests leave."""


@dataclass(frozen=True, slots=True)
class KeptRoom:
    """State slots and pages beyond those of the lanes. None may stay unused by lanes in need: the
    engine gives kept contexts up before a request waits."""

    slots: int = 0
    pages: int = 0


def lane_pages(budget: Budget) -> int:
    """Pages with which every lane reaches the full context."""
    return -(-budget.max_context // PAGE_TOKENS) * budget.max_concurrency


def kept_room(budget: Budget, page: int, slot: int, rest: int) -> KeptRoom:
    """Slots and pages for kept contexts, out of ``rest`` bytes that are left when every lane has
    all that it can use; ``page`` and ``slot`` are bytes of one.

    What was asked for is given: ``extra_state_slots`` as it is, and with ``kv_tokens`` no page
    beyond those. Where not all that is wanted fits, slots and pages shrink alike.
    """
    if not budget.keep_checkpoints:
        return KeptRoom(budget.extra_state_slots or 0)
    asked = budget.extra_state_slots
    slots = SLOTS_PER_LANE * budget.max_concurrency if asked is None else asked
    pages = 0 if budget.kv_tokens is not None else CONTEXTS_PER_LANE * lane_pages(budget)
    most = max(0, rest) // LARGEST_SHARE
    planned = pages * page + (slots * slot if asked is None else 0)
    if planned > most:
        pages = pages * most // planned
        slots = slots * most // planned if asked is None else slots
    return KeptRoom(slots, pages)
