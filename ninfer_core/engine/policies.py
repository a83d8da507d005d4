"""The built-in cache policy."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_core.contract.cache import Demand, SaveOffer, SourceCandidate, Victim
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.resources import Shortfall


class OffPolicy:
    """Keeps nothing: every request starts at the root and is released at its end."""

    @property
    def keeps(self) -> bool:
        return False

    def rank_sources(
        self, prepared: PreparedPrompt, candidates: Sequence[SourceCandidate]
    ) -> Sequence[SourceCandidate]:
        return ()

    def victims(self, shortfall: Shortfall, candidates: Sequence[Victim]) -> Sequence[Victim]:
        return candidates

    def admit(self, offer: SaveOffer) -> bool:
        return False

    def observe(self, demand: Demand) -> None:
        return None
