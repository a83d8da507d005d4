"""Costs of drafts that tests fix."""

from __future__ import annotations

from dataclasses import replace

from ninfer_core.contract.draft_costs import DraftCosts
from ninfer_qwen3_5.program.drafting import Drafting


def costs(most: int, *, verify: float, draft: float, width: float = 0.0) -> DraftCosts:
    """In plain rounds: ``verify`` and ``draft`` of each draft, ``width`` of a round that has to do
    with drafts at all."""
    return DraftCosts(
        rows=(1,),
        plain=(1.0,),
        verify=tuple((1.0 + width + verify * count,) for count in range(most + 1)),
        draft=tuple((draft * count,) for count in range(most + 1)),
    )


def free(drafting: Drafting) -> Drafting:
    """Drafts cost nothing, so that all are made as long as they are right now and then."""
    return replace(drafting, costs=costs(drafting.tokens, verify=0.0, draft=0.0))
