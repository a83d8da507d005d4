"""What rounds with drafts cost, in plain rounds of as many rows."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from ninfer_core.contract.draft_costs import DraftCosts
from ninfer_core.contract.resources import ProgramLimits

LEAST_PATIENCE = 16
"""Rounds between two trials of one more draft, however little a trial costs."""

_PRESUMED = (1.0, 0.1)
"""Seconds of a plain round and of each draft more, where nothing was measured."""


class Prices:
    """``costs`` in relation to a plain round, for every number of rows up to ``rows``; between
    the numbers measured by the line through them, beyond the last as at the last."""

    def __init__(self, costs: DraftCosts, rows: int) -> None:
        self.costs = costs
        self._by_rows = tuple(self._whole(count) for count in range(1, rows + 1))
        self._opening = tuple(self._open(count) for count in range(1, rows + 1))

    def by_drafts(self, rows: int) -> tuple[float, ...]:
        """A round that verifies 0 .. K drafts and makes as many, in plain rounds; 1 for none, and
        never less for more drafts."""
        return self._by_rows[min(rows, len(self._by_rows)) - 1]

    def patience(self, rows: int, drafts: int, share: float) -> int:
        """Rounds of ``drafts`` drafts after which one with one more may come, so that these, if
        they bring nothing, cost ``share`` of plain rounds."""
        costs = self.by_drafts(rows)
        extra = costs[drafts + 1] - costs[drafts]
        if not drafts:
            extra += self._opening[min(rows, len(self._opening)) - 1]
        return max(LEAST_PATIENCE, math.ceil(extra / share))

    def _whole(self, rows: int) -> tuple[float, ...]:
        plain, prices = self._at(self.costs.plain, rows), [1.0]
        for verify, draft in zip(self.costs.verify[1:], self.costs.draft[1:], strict=True):
            seconds = self._at(verify, rows) + self._at(draft, rows)
            prices.append(max(prices[-1], seconds / plain))
        return tuple(prices)

    def _open(self, rows: int) -> float:
        """What the first draft costs before there is one to verify, beyond a plain round."""
        width = self._at(self.costs.verify[0], rows) / self._at(self.costs.plain, rows)
        return max(0.0, width - 1)

    def _at(self, seconds: tuple[float, ...], rows: int) -> float:
        known = self.costs.rows
        right = bisect_left(known, rows)
        if right == len(known):
            return seconds[-1]
        if known[right] == rows or not right:
            return seconds[right]
        part = (rows - known[right - 1]) / (known[right] - known[right - 1])
        return seconds[right - 1] + part * (seconds[right] - seconds[right - 1])


@dataclass(frozen=True, slots=True)
class PriceLists:
    """``greedy`` for requests whose rounds take the likeliest token, ``drawn`` for those that draw,
    or whose logits are processed first. A round of both draws for all; each request goes by its
    own list, so that what it drafts does not depend on its company."""

    greedy: Prices
    drawn: Prices

    def of(self, *, plain: bool) -> Prices:
        return self.greedy if plain else self.drawn


def prices_of(limits: ProgramLimits) -> PriceLists | None:
    """None without drafts."""
    if not limits.draft_tokens:
        return None
    costs = limits.draft_costs or presumed(limits.draft_tokens)
    greedy = Prices(costs, limits.max_concurrency)
    if costs.drawn is None:
        return PriceLists(greedy, greedy)
    return PriceLists(greedy, Prices(costs.drawn, limits.max_concurrency))


def presumed(drafts: int) -> DraftCosts:
    """Costs of a device on which none were measured: a tenth of a plain round for each draft."""
    plain, more = _PRESUMED
    return DraftCosts(
        rows=(1,),
        plain=(plain,),
        verify=((plain,),) * (drafts + 1),
        draft=tuple((more * count,) for count in range(drafts + 1)),
    )
