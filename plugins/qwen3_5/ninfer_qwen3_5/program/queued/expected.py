"""How long rounds should take."""

from __future__ import annotations

_WEIGHT = 0.25
"""Of the latest round in the estimate."""

_MOST = 1.25
"""What a round may count for, relative to the estimate: one behind a chunk of a prompt took longer
than the next one will."""

_SOONER = 15 / 16
"""What is left of an estimate that let the host sleep through the end of a round."""


class Expected:
    """A running estimate for every number of rows.

    A host that overslept knows only that the round took no longer. If such times were averaged in,
    an estimate that is too long would keep itself up.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def seconds(self, rows: int) -> float:
        """0 before the first round."""
        return self._seconds.get(rows, 0.0)

    def learn(self, rows: int, took: float, overslept: bool) -> None:
        """A round took ``took`` seconds, or at most so many, if the host ``overslept`` its end."""
        usual = self._seconds.get(rows, took)
        if overslept:
            self._seconds[rows] = _SOONER * min(usual, took)
        else:
            self._seconds[rows] = usual + _WEIGHT * (min(took, _MOST * usual) - usual)
