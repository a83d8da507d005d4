"""The host's side of the rings between host and device."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.ops.contracts.rounds import (
    CHANGE_WORDS,
    EGRESS_HEADER_WORDS,
    EGRESS_ROW_WORDS,
    HEADER_WORDS,
    ROW_WORDS,
    RoundRing,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Arena

DEPTH = 4
"""Places of a ring: one round being read, one ahead of it, and room for what is not yet read."""
CHANGES = 64
"""Block table entries that one round can take along."""


class HostRing:
    """Writes the inputs of a round and reads its results; ``number`` is the round written next."""

    def __init__(self, lanes: int, pinned: Arena, arena: Arena) -> None:
        import torch

        words = HEADER_WORDS + ROW_WORDS * lanes + CHANGE_WORDS * CHANGES
        answer = EGRESS_HEADER_WORDS + EGRESS_ROW_WORDS * lanes
        self.ring = RoundRing(
            pinned.take("ingress", (DEPTH, words), torch.int32).zero_(),
            pinned.take("egress", (DEPTH, answer), torch.int32).zero_(),
            arena.take("round", (1,), torch.int32).zero_(),
            lanes,
            CHANGES,
        )
        self._first_change = HEADER_WORDS + ROW_WORDS * lanes
        self._ingress = self.ring.ingress.numpy()
        self._egress = self.ring.egress.numpy()
        self.number = 0

    def write(self, rows: Rows[tuple[int, ...]], changes: Rows[tuple[int, int, int]]) -> int:
        """Put the next round's rows (lane, token, start, slot, target, rope delta) and table
        changes in their place; returns the round's number."""
        if len(changes) > CHANGES:
            raise EngineFailure(f"{len(changes)} table changes do not fit a round")
        number, place = self.number, self._ingress[self.number % DEPTH]
        flat = [number, len(rows), len(changes), 0]
        for row in rows:
            flat += row
            flat += (0, 0)
        place[: len(flat)] = flat
        if changes:
            listed = [word for change in changes for word in change]
            place[self._first_change : self._first_change + len(listed)] = listed
        self.number += 1
        return number

    def flag(self, number: int) -> Tensor:
        """The word that becomes ``number + 1`` when the round's results are there."""
        return self.ring.egress[number % DEPTH, :1]

    def read(self, number: int, count: int) -> tuple[list[int], list[bool]]:
        """Tokens and broken flags of a finished round. Raises EngineFailure on a mismatch."""
        place = self._egress[number % DEPTH]
        words = place[: EGRESS_HEADER_WORDS + EGRESS_ROW_WORDS * count].tolist()
        if words[0] != number + 1 or words[1] or words[2] != count:
            raise EngineFailure(
                f"round {number} of {count} rows came back as {words[0] - 1} of {words[2]}, "
                f"error {words[1]}"
            )
        rows = words[EGRESS_HEADER_WORDS:]
        return rows[::2], [bool(broken) for broken in rows[1::2]]
