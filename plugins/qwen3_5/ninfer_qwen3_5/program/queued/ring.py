"""The host's side of the rings between host and device."""

from __future__ import annotations

import struct
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Any, cast

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

Drawing = tuple[Rows[int], Rows[int]]
"""Tokens by row, and which rows are broken: those with another number than 0."""

DEPTH = 4
"""Places of a ring: one round being read, one ahead of it, and room for what is not yet read."""
CHANGES = 64
"""Block table entries that one round can take along."""


_ROW = "6i8x"
"""The six words of a row that mean something; the last two are zeros."""


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
        self._ingress = [_bytes(place) for place in self.ring.ingress]
        self._egress = [_bytes(place) for place in self.ring.egress]
        counts = range(lanes + 1)
        self._inputs = [struct.Struct(f"{HEADER_WORDS}i" + _ROW * count) for count in counts]
        self._answers = [
            struct.Struct(f"{EGRESS_HEADER_WORDS + EGRESS_ROW_WORDS * count}i") for count in counts
        ]
        self.number = 0

    def write(self, rows: Rows[tuple[int, ...]], changes: Rows[tuple[int, int, int]]) -> int:
        """Put the next round's rows (lane, token, start, slot, target, rope delta) and table
        changes in their place; returns the round's number."""
        if len(changes) > CHANGES:
            raise EngineFailure(f"{len(changes)} table changes do not fit a round")
        self.put(rows, changes)
        self.number += 1
        return self.number - 1

    def put(self, rows: Rows[tuple[int, ...]], changes: Rows[tuple[int, int, int]]) -> None:
        """What :meth:`write` does before the round has its number: the place stays free."""
        number, count = self.number, len(rows)
        place, words = self._ingress[number % DEPTH], [number, count, len(changes), 0]
        for row in rows:
            words += row
        self._inputs[count].pack_into(place, 0, *words)
        if changes:
            listed = [word for change in changes for word in change]
            struct.pack_into(f"{len(listed)}i", place, 4 * self._first_change, *listed)

    def flag(self, number: int) -> Tensor:
        """The word that becomes ``number + 1`` when the round's results are there."""
        return self.ring.egress[number % DEPTH, :1]

    def read(self, number: int, count: int) -> Drawing:
        """The results of a finished round. Raises EngineFailure on a mismatch."""
        words = self._answers[count].unpack_from(self._egress[number % DEPTH])
        if words[0] != number + 1 or words[1] or words[2] != count:
            raise EngineFailure(
                f"round {number} of {count} rows came back as {words[0] - 1} of {words[2]}, "
                f"error {words[1]}"
            )
        return words[EGRESS_HEADER_WORDS::2], words[EGRESS_HEADER_WORDS + 1 :: 2]


def _bytes(place: Tensor) -> memoryview:
    """A place of a ring as bytes that struct writes and reads: what numpy needs to set out for a
    few words costs more than they do."""
    return memoryview(cast("Any", place.numpy())).cast("B")
