"""What a speculative round takes from the host and leaves there, packed for one copy each."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Arena

_SCALARS = 8
_FOLD_SCALARS = 4
_ALIGNED = 8
"""Words: columns begin at multiples of 32 bytes, as kernels like their operands."""


@dataclass(frozen=True, slots=True)
class RowWords:
    """One row: its waiting token and drafts, where it stands, and its budget."""

    ids: tuple[int, ...]
    start: int
    delta: int
    slot: int
    target: int
    lane: int
    remaining: int
    most: int


@dataclass(frozen=True, slots=True)
class SpecRows:
    """B rows on the device: ``ids`` i32[B * W], padded; i32[B]: ``starts``, ``live`` (rows to
    verify), ``deltas``, ``slots``, ``targets``, ``lanes``, ``remaining`` (tokens that may still be
    produced), ``most`` (drafts that are worth making)."""

    ids: Tensor
    starts: Tensor
    live: Tensor
    deltas: Tensor
    slots: Tensor
    targets: Tensor
    lanes: Tensor
    remaining: Tensor
    most: Tensor


@dataclass(frozen=True, slots=True)
class FoldRows:
    """i32[B]: ``slots``, ``targets``, ``counts`` of accepted rows, and ``last``, the place of the
    last of them among the hidden rows of the round."""

    slots: Tensor
    targets: Tensor
    counts: Tensor
    last: Tensor


@dataclass(frozen=True, slots=True)
class Answer:
    """What each row drew: ``tokens`` and ``broken`` [B][W], ``accepted`` [B] drafts, and the
    ``drafts`` [B][K] that go on from there."""

    tokens: list[list[int]]
    broken: list[list[int]]
    accepted: list[int]
    drafts: list[list[int]]


class SpecInputs:
    """``lanes`` rows of up to ``width`` W = K + 1. One round is on its way at a time."""

    def __init__(self, lanes: int, width: int, arena: Arena, pinned: Arena) -> None:
        import torch

        self.width = width
        self._pitch = -(-lanes // _ALIGNED) * _ALIGNED
        sizes = {"round": self._round_words, "fold": _FOLD_SCALARS * self._pitch}
        sizes["answer"] = self._pitch * (2 * width + 1 + width)
        self._device = {
            n: arena.take(f"spec.{n}", (s,), torch.int32).zero_() for n, s in sizes.items()
        }
        self._host = {
            n: pinned.take(f"spec.{n}", (s,), torch.int32).zero_() for n, s in sizes.items()
        }

    @staticmethod
    def bytes(lanes: int, width: int) -> int:
        """An upper bound of what is taken from each arena."""
        pitch = -(-lanes // _ALIGNED) * _ALIGNED
        return 4 * pitch * (4 * width + _SCALARS + _FOLD_SCALARS + 2) + 4096

    @property
    def _round_words(self) -> int:
        return self._pitch * (self.width + _SCALARS)

    def rows(self, count: int, width: int) -> SpecRows:
        whole, first = self._device["round"], self._pitch * self.width
        columns = [whole[first + place * self._pitch :][:count] for place in range(_SCALARS)]
        return SpecRows(whole[: count * width], *columns)

    def fold_rows(self, count: int) -> FoldRows:
        whole = self._device["fold"]
        return FoldRows(*(whole[place * self._pitch :][:count] for place in range(_FOLD_SCALARS)))

    def answers(self, count: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Where a round leaves ``Answer`` on the device: i32 of B * W, B * W, B and B * (W - 1)."""
        whole, pitch, widest = self._device["answer"], self._pitch, self.width
        return (
            whole[: count * width],
            whole[pitch * widest :][: count * width],
            whole[2 * pitch * widest :][:count],
            whole[pitch * (2 * widest + 1) :][: count * (width - 1)],
        )

    def send(self, rows: Rows[RowWords], width: int) -> None:
        """Enqueue the copy of a round's rows."""
        words = [0] * self._round_words
        for index, row in enumerate(rows):
            words[index * width : index * width + len(row.ids)] = row.ids
            scalars = (row.start, len(row.ids), row.delta, row.slot, row.target, row.lane)
            for place, value in enumerate((*scalars, row.remaining, row.most)):
                words[self._pitch * (self.width + place) + index] = value
        self._send("round", words)

    def send_fold(self, rows: Rows[tuple[int, int, int, int]]) -> None:
        """The same of a fold's rows (slot, target, count, last)."""
        words = [0] * (_FOLD_SCALARS * self._pitch)
        for index, row in enumerate(rows):
            for place, value in enumerate(row):
                words[place * self._pitch + index] = value
        self._send("fold", words)

    def fetch(self) -> None:
        """Enqueue the copy of the answer to the host."""
        self._host["answer"].copy_(self._device["answer"], non_blocking=True)

    def answer(self, count: int, width: int) -> Answer:
        """The answer that has been fetched."""
        widest, pitch = self.width, self._pitch
        words = self._host["answer"].tolist()

        def block(first: int, size: int) -> list[list[int]]:
            return [words[first + b * size : first + (b + 1) * size] for b in range(count)]

        accepted = words[2 * pitch * widest :][:count]
        drafts = block(pitch * (2 * widest + 1), width - 1)
        return Answer(block(0, width), block(pitch * widest, width), accepted, drafts)

    def _send(self, name: str, words: list[int]) -> None:
        import torch

        self._host[name].copy_(torch.tensor(words, dtype=torch.int32))
        self._device[name].copy_(self._host[name], non_blocking=True)
