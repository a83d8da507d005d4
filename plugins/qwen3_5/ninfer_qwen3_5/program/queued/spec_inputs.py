"""What a speculative round takes from the host and leaves there, packed for one copy each."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.verifying import Behind as Behind
from ninfer_core.ops.contracts.verifying import FoldRows, GivenRows
from ninfer_qwen3_5.program.queued.ring import CHANGES

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Arena

PLACES = 8
"""Of pinned memory for what goes either way. Two rounds are on their way at most, and each sends
its rows once and folds twice."""

_SCALARS = 9
_FOLD_SCALARS = 5
_ALIGNED = 8
"""Words: columns begin at multiples of 32 bytes, as kernels like their operands."""

Change = tuple[int, int, int]
"""Execution row, index and page of a block table's entry."""


@dataclass(frozen=True, slots=True)
class RowWords:
    """One row: its waiting token and drafts, where it stands, and its budget. Behind a round in
    flight the device knows better."""

    ids: tuple[int, ...]
    start: int
    delta: int
    slot: int
    lane: int
    remaining: int
    most: int
    behind: Behind
    place: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What each row drew: ``tokens`` and ``broken`` [B][W], ``accepted`` [B] drafts, and the
    ``drafts`` [B][K] that go on from there."""

    tokens: list[list[int]]
    broken: list[list[int]]
    accepted: list[int]
    drafts: list[list[int]]


class SpecInputs:
    """``lanes`` rows of up to ``width`` W = K + 1. Two rounds are on their way at most."""

    def __init__(self, lanes: int, width: int, arena: Arena, pinned: Arena) -> None:
        import torch

        self.width = width
        self._pitch = _pitch(lanes)
        self._changes = self._pitch * (width + _SCALARS)
        sizes = {
            "round": self._changes + 3 * CHANGES,
            "fold": _FOLD_SCALARS * self._pitch,
            "answer": self._pitch * (3 * width + 1),
        }
        self._device = {
            n: arena.take(f"spec.{n}", (s,), torch.int32).zero_() for n, s in sizes.items()
        }
        self._host = {
            n: pinned.take(f"spec.{n}", (PLACES, s), torch.int32).zero_() for n, s in sizes.items()
        }
        self._sent = dict.fromkeys(sizes, 0)

    @staticmethod
    def bytes(lanes: int, width: int) -> int:
        """An upper bound of what is taken of the device."""
        words = _pitch(lanes) * (4 * width + _SCALARS + _FOLD_SCALARS + 2) + 3 * CHANGES
        return 4 * words + 4096

    @staticmethod
    def pinned_bytes(lanes: int, width: int) -> int:
        return PLACES * SpecInputs.bytes(lanes, width)

    def rows(self, count: int, width: int) -> GivenRows:
        whole, first = self._device["round"], self._pitch * self.width
        columns = [whole[first + place * self._pitch :][:count] for place in range(_SCALARS)]
        return GivenRows(whole[: count * width], *columns)

    def changes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Execution rows, indices and pages of block table entries, i32[CHANGES]; those behind the
        last are the first one again."""
        words = self._device["round"][self._changes :].view(3, CHANGES)
        return words[0], words[1], words[2]

    def fold_rows(self, count: int) -> FoldRows:
        whole = self._device["fold"]
        return FoldRows(*(whole[place * self._pitch :][:count] for place in range(_FOLD_SCALARS)))

    def answers(self, count: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where a round leaves what is drawn on the device: i32 of B * W, B * W and B."""
        whole, pitch, widest = self._device["answer"], self._pitch, self.width
        return (
            whole[: count * width],
            whole[pitch * widest :][: count * width],
            whole[2 * pitch * widest :][:count],
        )

    def drafts(self, count: int) -> Tensor:
        """Where it leaves its drafts, i32[B, K]."""
        first, most = self._pitch * (2 * self.width + 1), self.width - 1
        return self._device["answer"][first:][: count * most].view(count, most)

    def send(self, rows: Rows[RowWords], width: int, changes: Rows[Change]) -> None:
        """Enqueue the copy of a round's rows, and of at most CHANGES table entries."""
        words = [0] * (self._changes + 3 * CHANGES)
        for index, row in enumerate(rows):
            words[index * width : index * width + len(row.ids)] = row.ids
            scalars = [row.start, len(row.ids), row.delta, row.slot, row.lane]
            scalars += [row.remaining, row.most, row.behind, row.place]
            for place, value in enumerate(scalars):
                words[self._pitch * (self.width + place) + index] = value
        if changes:
            padded = [*changes, *[changes[0]] * (CHANGES - len(changes))]
            words[self._changes :] = [change[place] for place in range(3) for change in padded]
        self._send("round", words)

    def send_fold(self, rows: Rows[tuple[int, int, int, int, int]]) -> None:
        """The same of a fold's rows (slot, target, lane, count, last)."""
        words = [0] * (_FOLD_SCALARS * self._pitch)
        for index, row in enumerate(rows):
            for place, value in enumerate(row):
                words[place * self._pitch + index] = value
        self._send("fold", words)

    def fetch(self) -> int:
        """Enqueue the copy of the answer to the host; returns the place that it goes to."""
        place = self._next("answer")
        self._host["answer"][place].copy_(self._device["answer"], non_blocking=True)
        return place

    def answer(self, place: int, count: int, width: int) -> Answer:
        """The answer that has been fetched to a place."""
        widest, pitch = self.width, self._pitch
        words = self._host["answer"][place].tolist()

        def block(first: int, size: int) -> list[list[int]]:
            return [words[first + b * size : first + (b + 1) * size] for b in range(count)]

        accepted = words[2 * pitch * widest :][:count]
        drafts = block(pitch * (2 * widest + 1), widest - 1)
        return Answer(block(0, width), block(pitch * widest, width), accepted, drafts)

    def _next(self, name: str) -> int:
        place = self._sent[name] % PLACES
        self._sent[name] += 1
        return place

    def _send(self, name: str, words: list[int]) -> None:
        import torch

        place = self._host[name][self._next(name)]
        place.copy_(torch.tensor(words, dtype=torch.int32))
        self._device[name].copy_(place, non_blocking=True)


def _pitch(lanes: int) -> int:
    return -(-lanes // _ALIGNED) * _ALIGNED
