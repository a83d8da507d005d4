"""Token masks on their way to the device: filled in pinned memory, copied ahead of the draw."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.contract.frontend import ColumnState, MaskProvider
from ninfer_core.ops.contracts.values import TokenMasks
from ninfer_qwen3_5.program.queued.ring import DEPTH

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Arena, Event, Lane

_ALIGNED = 16


@dataclass(frozen=True, slots=True)
class MaskBlock:
    """The masks of some rows in one stretch of bytes, so that one copy moves them: the active
    flags, then the words."""

    whole: Tensor
    masks: TokenMasks
    head: int
    row: int

    @staticmethod
    def take(arena: Arena, name: str, rows: int, vocab: int) -> MaskBlock:
        import torch

        words, head = -(-vocab // 32), -(-rows // _ALIGNED) * _ALIGNED
        whole = arena.take(name, (head + 4 * rows * words,), torch.uint8).zero_()
        active, bits = whole[:rows].view(torch.bool), whole[head:].view(torch.int32)
        return MaskBlock(whole, TokenMasks(bits.view(rows, words), active), head, 4 * words)

    def send(self, rows: int, target: MaskBlock) -> None:
        size = self.head + rows * self.row
        target.whole[:size].copy_(self.whole[:size], non_blocking=True)

    def fill(self, index: int, provider: MaskProvider | None) -> bool:
        """Ask for one row's mask; returns whether it leaves no token."""
        column = None
        if provider is not None:
            words = self.masks.words[index : index + 1].numpy().view("uint32")
            (column,) = provider.fill((), words)
        self.masks.active[index] = column is ColumnState.READY
        return column is ColumnState.DEAD_END


class MaskRing:
    """One place for each place of the round ring, because a round launched ahead is filled while
    the draw of the round before it may not have read its masks; and one for a prompt's draw."""

    def __init__(self, lanes: int, vocab: int, pinned: Arena, arena: Arena, lane: Lane) -> None:
        self._lane = lane
        self._places = [MaskBlock.take(pinned, f"masks.{n}", lanes, vocab) for n in range(DEPTH)]
        self._round = MaskBlock.take(arena, "masks", lanes, vocab)
        self._place = MaskBlock.take(pinned, "masks.prompt", 1, vocab)
        self._prompt = MaskBlock.take(arena, "masks.prompt", 1, vocab)
        self._sent: Event | None = None

    @staticmethod
    def device_bytes(lanes: int, vocab: int) -> int:
        """An upper bound of what is taken from the device's arena."""
        return (lanes + 1) * (vocab // 8 + 512) + 1024

    @staticmethod
    def pinned_bytes(lanes: int, vocab: int) -> int:
        return (DEPTH + 1) * MaskRing.device_bytes(lanes, vocab)

    @property
    def masks(self) -> TokenMasks:
        """Where rounds find theirs on the device, by row."""
        return self._round.masks

    def fill_round(self, number: int, providers: Rows[MaskProvider | None]) -> list[bool]:
        """Fill and enqueue the masks of a round; returns which rows are at a dead end."""
        place = self._places[number % DEPTH]
        dead = [place.fill(index, provider) for index, provider in enumerate(providers)]
        place.send(len(providers), self._round)
        return dead

    def fill_prompt(self, provider: MaskProvider) -> tuple[TokenMasks, bool]:
        """The mask of one row on the device, and whether the row is at a dead end."""
        if self._sent is not None:
            self._sent.wait()
        dead = self._place.fill(0, provider)
        self._place.send(1, self._prompt)
        self._sent = self._lane.record()
        return self._prompt.masks, dead
