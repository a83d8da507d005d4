"""How many drafts a request is worth: from its own acceptance and the costs that start-up
measured, never the clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ninfer_qwen3_5.program.draft_prices import Prices

PRIOR = 0.8
"""Chance that a draft is accepted, as long as a place was not tried. High, because drafters that
are worth having are right more often than not."""

PRIOR_WEIGHT = 1.0
"""Trials that the prior counts for."""

MEMORY = 1 / 24
"""What older trials of a place lose of their weight with every new one."""

STALE = 0.5
"""What they lose where the place was out of use and is tried again."""

MARGIN = 1.02
"""What a number of drafts must gain over a smaller one's rounds to be preferred to none: a round
that drafts is more work for the host too."""

PROBE_SHARE = 0.006
"""Of the time of plain decoding, what trying one more draft may cost in the long run."""

SHARE = 0.02
"""Of the time of plain decoding, what a request may lose by drafts in all, beside ``CREDIT``."""

CREDIT = 2.0
"""Plain rounds that a request may lose by its drafts however short it is."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the rounds of a request have shown. ``hits`` and ``trials`` by place, both faded.

    ``lost`` are plain rounds lost against plain decoding, ``tokens`` those that rounds produced;
    ``idle`` counts rounds since one had more drafts than its rows were found worth.
    ``found`` keeps what was found out, by rows.
    """

    hits: tuple[float, ...]
    trials: tuple[float, ...]
    lost: float = 0.0
    tokens: int = 0
    idle: int = 0
    found: dict[int, int] = field(default_factory=dict)

    def worth(self, prices: Prices, rows: int) -> int:
        """As many drafts as bring the most tokens for what the rounds cost."""
        known = self.found.get(rows)
        if known is None:
            known = self.found[rows] = self._best(prices.by_drafts(rows))
        return known

    def _best(self, costs: tuple[float, ...]) -> int:
        best, count, tokens, chance = MARGIN, 0, 1.0, 1.0
        for place, (hits, trials) in enumerate(zip(self.hits, self.trials, strict=True)):
            chance *= hits / trials
            tokens += chance
            gain = tokens / costs[place + 1]
            if gain > best:
                best, count = gain, place + 1
        return count

    def after(self, prices: Prices, rows: int, drafted: int, accepted: int) -> Evidence:
        """With one more round."""
        if not drafted:
            return replace(self, tokens=self.tokens + 1, idle=self.idle + 1)
        usual, tokens = self.worth(prices, rows), accepted + 1
        hits, trials = list(self.hits), list(self.trials)
        for place in range(min(drafted, accepted + 1)):
            kept = 1 - (STALE if place >= usual else MEMORY)
            hits[place] = kept * hits[place] + (place < accepted)
            trials[place] = kept * trials[place] + 1
        made = Evidence(
            tuple(hits),
            tuple(trials),
            self.lost + prices.by_drafts(rows)[drafted] - tokens,
            self.tokens + tokens,
            0 if drafted > usual else self.idle + 1,
        )
        return made if made.worth(prices, rows) == usual else replace(made, idle=0)


@dataclass(slots=True)
class Steering:
    """One request's. ``most`` is K.

    It decides when a round is launched, and that may be before or after the round before it is
    read. So that it decides alike in both cases, the latest round that it can know of both times is
    the one before that.
    """

    most: int
    prices: Prices
    _now: Evidence = field(init=False)
    _before: Evidence = field(init=False)

    def __post_init__(self) -> None:
        trials = (PRIOR_WEIGHT,) * self.most
        self._now = self._before = Evidence((PRIOR * PRIOR_WEIGHT,) * self.most, trials)

    def learn(self, rows: int, drafted: int, accepted: int) -> None:
        """A round of ``rows`` verified ``drafted`` drafts of this request and took ``accepted``."""
        self._before = self._now
        self._now = self._now.after(self.prices, rows, drafted, accepted)

    def wanted(self, rows: int = 1, behind: int = 0) -> int:
        """Drafts to make in a round of ``rows``, launched ``behind`` so many that are not read
        (0 or 1): as many as pay, one more once in a while, none while too much is lost."""
        seen = self._now if behind else self._before
        if seen.lost > CREDIT + SHARE * seen.tokens:
            return 0
        count = seen.worth(self.prices, rows)
        if count == self.most or not seen.idle:
            return count
        return count + (seen.idle % self.prices.patience(rows, count, PROBE_SHARE) == 0)
