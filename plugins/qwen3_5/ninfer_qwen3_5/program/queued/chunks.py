"""Chunks of one sequence: inputs packed into one copy, the model enqueued, nothing waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.ops.contracts.values import PagedRows
from ninfer_qwen3_5.model.routes import ChunkRoute, Route, StepRoute
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.drafting import Drafter
from ninfer_qwen3_5.program.positions import write_positions
from ninfer_qwen3_5.program.queued.lanes import LaneState
from ninfer_qwen3_5.program.sequence import Sequence

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    from ninfer_core.device.base import Arena, Event, Lane
    from ninfer_core.store.block_tables import BlockTables

_FEEDS = 4
"""Chunks whose inputs may be on their way at once."""
_SCALARS = 8


def feed_words(chunk: int, pages: int) -> int:
    """i32 words of one chunk's inputs: ids, three rows of positions, scalars, a block table."""
    return 4 * chunk + _SCALARS + pages


def feed_bytes(chunk: int, pages: int) -> int:
    return _FEEDS * 4 * feed_words(chunk, pages) + 4096


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """Enqueued tokens: their residual rows [n, H], and the position after them as i32[1] on the
    device."""

    residual: Tensor
    stop: Tensor


@dataclass(slots=True)
class _Feed:
    """One place of the queue: pinned words, their device copy, the pinned ones as the host writes
    them, and when it was last used."""

    pinned: Tensor
    device: Tensor
    words: npt.NDArray[np.int32]
    used: Event | None = None

    @classmethod
    def of(cls, pinned: Tensor, device: Tensor) -> _Feed:
        return cls(pinned, device, pinned.numpy())


class ChunkRunner:
    """Runs tokens of one sequence past its frontier, from one state slot into another."""

    def __init__(
        self,
        model: TextModel,
        state: ModelState,
        lanes: LaneState,
        tables: BlockTables,
        lane: Lane,
        pinned: Arena,
        arena: Arena,
        chunk: int,
        drafter: Drafter | None = None,
    ) -> None:
        import torch

        self.drafter = drafter

        self._model = model
        self._state = state
        self._lanes = lanes
        self._host_tables = tables
        self._pages = lanes.host_tables.numpy()
        self._lane = lane
        words = feed_words(chunk, lanes.host_tables.shape[1])
        self._feeds = [
            _Feed.of(
                pinned.take(f"feed.{place}", (words,), torch.int32),
                arena.take(f"feed.{place}", (words,), torch.int32),
            )
            for place in range(_FEEDS)
        ]
        self._next = 0
        self._chunk = chunk

    def run(
        self, sequence: Sequence, tokens: list[int], start: int, source: int, target: int
    ) -> ChunkRun:
        """Enqueue ``tokens`` from position ``start`` on, by the chunk route."""
        self._state.copy_slot(source, target)
        return self._enqueue(sequence, tokens, start, target, None)

    def step(self, sequence: Sequence, token: int, start: int, source: int, target: int) -> None:
        """Enqueue one token by the decode route."""
        self._enqueue(sequence, [token], start, target, source)

    def _enqueue(
        self, sequence: Sequence, tokens: list[int], start: int, target: int, source: int | None
    ) -> ChunkRun:
        count = len(tokens)
        scalars = [sequence.row, start, count, target, source or 0, start + count, 0, 0]
        words, feed = self._send(sequence, tokens, start, scalars)
        run = self._forward(words, count, chunk=source is None)
        feed.used = self._lane.record()
        return run

    def rehearse(self, count: int, *, chunk: bool) -> ChunkRun:
        """Call the ops of ``count`` tokens by the chunk or the decode route, for no sequence:
        whatever they write goes to page 0 and slot 0."""
        words = self._feeds[0].device[: 4 * count + _SCALARS].zero_()
        return self._forward(words, count, chunk=chunk)

    def _forward(self, words: Tensor, count: int, *, chunk: bool) -> ChunkRun:
        """Enqueue the model over packed inputs."""
        ids, positions = words[:count], words[count : 4 * count].view(3, count)
        row, began, live, to, out_of, end = (
            words[4 * count + place : 4 * count + place + 1] for place in range(6)
        )
        rows = PagedRows(self._lanes.tables.block_tables, row, began, live, count)
        place = self._model.place(rows, positions)
        route: Route
        slot, source = to.long(), out_of.long()
        if chunk:
            route = ChunkRoute(self._model.ops, place, slot)
        else:
            route = StepRoute(self._model.ops, place, source, slot)
        taps = None if self.drafter is None else self.drafter.taps()
        residual = self._model.forward(ids, route, self._state, taps).residual
        if self.drafter is not None and chunk:
            self.drafter.after_chunk(ids, residual, taps, place, slot)
        elif self.drafter is not None:
            self.drafter.after_step(ids, residual, taps, place, source, slot)
        return ChunkRun(residual, end)

    def _send(
        self, sequence: Sequence, tokens: list[int], start: int, scalars: list[int]
    ) -> tuple[Tensor, _Feed]:
        """Pack the inputs and copy them to the device, once the place is free again.

        The block table travels with them: its row on the host may pass to a sequence that shares
        pages with others before a chunk that nobody waits for has run.
        """
        count = len(tokens)
        if count > self._chunk:
            raise EngineFailure(
                f"a chunk of {count} tokens was launched; {self._chunk} is the most"
            )
        feed = self._feeds[self._next]
        self._next = (self._next + 1) % _FEEDS
        if feed.used is not None:
            feed.used.wait()
        inputs = 4 * count + _SCALARS
        pages = self._pages[sequence.row]
        total = inputs + pages.shape[0]
        host = feed.words
        host[:count] = tokens
        places = host[count : 4 * count].reshape(3, count)
        write_positions(sequence, start, start + count, places)
        host[4 * count : inputs] = scalars
        host[inputs:total] = pages
        words = feed.device[:total]
        words.copy_(feed.pinned[:total], non_blocking=True)
        self._lanes.take_row(self._host_tables, sequence.row, words[inputs:])
        return words[:inputs], feed
