"""How many drafts a request is worth: from its own acceptance and fixed costs, never the clock."""

from __future__ import annotations

from dataclasses import dataclass, field

ROW_COST = 0.1
"""What a draft, made and verified, costs in rounds without one. A guess on the safe side for the
sizes at which weights are what a round reads; start-up measures none yet."""

MEMORY = 1 / 16
"""Weight of the latest round in the acceptance of a place."""

PROBE_EVERY = 48
"""Rounds without drafts after which one with the first draft is tried again."""


@dataclass(slots=True)
class Steering:
    """One request's. ``most`` is K; ``rates`` are the chances that a place is accepted if those
    before it are. It begins with all K, as if they were accepted."""

    most: int
    rates: list[float] = field(init=False)
    idle: int = 0

    def __post_init__(self) -> None:
        self.rates = [1.0] * self.most

    def learn(self, drafted: int, accepted: int) -> None:
        """A round offered ``drafted`` drafts and took ``accepted``."""
        if not drafted:
            self.idle += 1
            return
        self.idle = 0
        for place in range(min(drafted, accepted + 1)):
            self.rates[place] += MEMORY * ((place < accepted) - self.rates[place])

    def wanted(self) -> int:
        """Drafts for the next round: as many as bring the most tokens for what they cost."""
        best, count, tokens, chance = 1.0, 0, 1.0, 1.0
        for place, rate in enumerate(self.rates):
            chance *= rate
            tokens += chance
            gain = tokens / (1 + ROW_COST * (place + 1))
            if gain > best:
                best, count = gain, place + 1
        if not count and self.idle >= PROBE_EVERY:
            return 1
        return count
