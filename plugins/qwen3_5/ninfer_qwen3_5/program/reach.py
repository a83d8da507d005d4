"""How far the pages of a unit must reach."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_core.contract.checkpoints import BindRequest
from ninfer_core.contract.units import UnitKind, UnitNeed
from ninfer_qwen3_5.program.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Reach:
    """Behind those of a decode round up to ``drafts`` + 1 columns are written by the drafter: at
    the token that goes on from there, and at the drafts behind it."""

    max_context: int
    drafts: int = 0

    def covered(self, sequence: Sequence, reach: int, need: UnitNeed) -> int:
        """Tokens whose pages a unit needs that may execute up to ``reach``: after a round and after
        a prompt drafts are made."""
        ends = need.kind is UnitKind.PREFILL and need.last
        if not (ends or need.kind is UnitKind.DECODE):
            return reach
        return self.of_round(sequence.request, reach)

    def of_round(self, request: BindRequest, reach: int) -> int:
        """The same for a unit behind which drafts are made. Nothing is drafted or run that the
        budget has no use for; with the most that two rounds may run, ``reach`` may lie behind it.
        """
        if not self.drafts:
            return reach
        end = request.prepared.length + request.rules.max_new_tokens
        return min(reach + 1 + self.drafts, end, self.max_context)
