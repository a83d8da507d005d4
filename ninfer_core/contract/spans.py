"""How the tokens behind a state were executed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutedSpan:
    """Tokens up to ``stop``, from where the span before it ended.

    ``stepped``: one by one, as decode rounds do; else as one chunk. Equal tokens executed in
    different spans give states that may differ in their last bits.
    """

    stop: int
    stepped: bool
