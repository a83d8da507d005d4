"""What an engine tells of its drafts at start: how many, and what they were measured to cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer_core.contract.draft_costs import DraftCosts
from ninfer_core.contract.program import Program, ScoringProgram


def draft_details(name: str | None, program: Program | ScoringProgram) -> Mapping[str, Any]:
    """``draft`` with the backend's ``name``, ``tokens`` K and ``costs_ms``, an object for every
    number of rows that was measured: milliseconds of a ``plain`` round, and by 0 .. K drafts of a
    round that ``verify``s them and of making them (``draft``); in ``drawn`` the first two of rounds
    that draw by a law, where they were measured. Empty without a drafter."""
    limits = getattr(program, "limits", None)
    if name is None or limits is None:
        return {}
    facts: dict[str, Any] = {"backend": name, "tokens": limits.draft_tokens}
    costs = limits.draft_costs
    if costs is not None:
        facts["costs_ms"] = {
            str(rows): _rounds(costs, place)
            | {"draft": [_ms(seconds[place]) for seconds in costs.draft]}
            | ({} if costs.drawn is None else {"drawn": _rounds(costs.drawn, place)})
            for place, rows in enumerate(costs.rows)
        }
    return {"draft": facts}


def _rounds(costs: DraftCosts, place: int) -> dict[str, Any]:
    verify = [_ms(seconds[place]) for seconds in costs.verify]
    return {"plain": _ms(costs.plain[place]), "verify": verify}


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 4)
