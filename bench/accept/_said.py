"""What was said so far, as token sequences, and what a new prompt has in common with it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(slots=True)
class Said:
    """Everything that was rendered and answered, as token sequences under one template."""

    turn_start: int
    turn_end: int
    line_feed: int
    roles: tuple[int, int]
    _sequences: list[bytes] = field(default_factory=list)
    """Sorted, so that the one that shares most with another stands beside it."""
    _beginnings: set[bytes] = field(default_factory=set)

    @classmethod
    def by(cls, engine: Any) -> Said:
        def token(text: str) -> int:
            (found,) = engine.tokenize(text)
            return int(found)

        return cls(
            token("<|im_start|>"),
            token("<|im_end|>"),
            token("\n"),
            (token("assistant"), token("user")),
        )

    def add(self, prompt: Any, answer: Sequence[int]) -> None:
        """A prompt and its answer; a closed answer is followed by what closes every message."""
        closed = list(answer)
        if closed and closed[-1] == self.turn_end:
            closed.append(self.line_feed)
        sequence = np.concatenate([prompt, np.asarray(closed, dtype=np.int32)])
        insort(self._sequences, sequence.tobytes())
        ends = [*self._boundaries(sequence), len(sequence)]
        self._beginnings.update(sequence[:end].tobytes() for end in ends)

    def places(self, prompt: Any, beside: Sequence[Any] = ()) -> tuple[int, bool, int]:
        """``boundary``, ``edit`` and ``shared`` of a :class:`Turn`; what is asked ``beside`` it may
        be shared as soon as it is read."""
        boundary = self.boundary(prompt)
        shared = max([self.shared(prompt), *(_common(prompt, other) for other in beside)])
        return boundary, self.edit(prompt, boundary), shared

    def boundary(self, prompt: Any) -> int:
        """The last message boundary of ``prompt`` up to which something earlier equals it."""
        for end in reversed(self._boundaries(prompt)):
            if prompt[:end].tobytes() in self._beginnings:
                return end
        return 0

    def edit(self, prompt: Any, boundary: int) -> bool:
        """Whether a user message stands at ``boundary`` behind an answer."""
        before = [end for end in [0, *self._boundaries(prompt)] if end < boundary]
        return bool(before) and (prompt[before[-1] + 1], prompt[boundary + 1]) == self.roles

    def shared(self, prompt: Any) -> int:
        """Tokens that ``prompt`` has in common with something earlier."""
        place = bisect_left(self._sequences, prompt.tobytes())
        beside = self._sequences[max(0, place - 1) : place + 1]
        return max((_common(prompt, np.frombuffer(b, np.int32)) for b in beside), default=0)

    def _boundaries(self, sequence: Any) -> list[int]:
        return [int(at) for at in np.flatnonzero(sequence == self.turn_start) if at > 0]


def _common(first: Any, second: Any) -> int:
    length = min(len(first), len(second))
    differing = np.flatnonzero(first[:length] != second[:length])
    return int(differing[0]) if len(differing) else length
