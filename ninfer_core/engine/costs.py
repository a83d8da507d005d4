"""What moving costs in terms of reading, by what this engine has measured."""

from __future__ import annotations

LEAST_TOKENS = 64
"""A shorter read says more of what is done once than of the speed."""

_KEPT = 0.5
"""How much of the past counts beside a new read."""


class Costs:
    """Tokens per second at which prompts were read lately, those of the warm-up first. Until a
    prompt was read, moving counts as free, and the deepest source wins."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def read(self, tokens: int, seconds: float) -> None:
        """A request read so many tokens of its prompt in that time, waiting included."""
        if tokens < LEAST_TOKENS or seconds <= 0:
            return
        self._tokens = self._tokens * _KEPT + tokens
        self._seconds = self._seconds * _KEPT + seconds

    @property
    def tokens_per_second(self) -> float:
        return self._tokens / self._seconds if self._seconds else 0.0

    def in_tokens(self, seconds: float) -> float:
        """Tokens of a prompt that could be read instead."""
        return seconds * self.tokens_per_second
