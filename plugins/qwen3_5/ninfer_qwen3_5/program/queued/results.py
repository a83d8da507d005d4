"""Results that leave the device by a copy: what chunks draw and score, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.ops.contracts.values import Drawn, LogprobRows
from ninfer_qwen3_5.program.queued.ring import Drawing
from ninfer_qwen3_5.program.sampler import token_logprobs

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Event, Lane


@dataclass(frozen=True, slots=True)
class Coming:
    """Host tensors that are complete once ``event`` has passed."""

    tensors: tuple[Tensor, ...]
    event: Event

    def wait(self) -> tuple[Tensor, ...]:
        self.event.wait()
        return self.tensors


def fetch(tensors: Rows[Tensor], lane: Lane) -> Coming:
    """Enqueue copies of device tensors to the host."""
    copies = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
    return Coming(copies, lane.record())


@dataclass(frozen=True, slots=True)
class ComingDraw:
    """One drawn row."""

    coming: Coming

    @staticmethod
    def of(drawn: Drawn, lane: Lane) -> ComingDraw:
        return ComingDraw(fetch([drawn.tokens, drawn.broken], lane))

    def wait(self) -> Drawing:
        tokens, broken = self.coming.wait()
        return tokens.tolist(), broken.tolist()


@dataclass(frozen=True, slots=True)
class ComingLogprobs:
    """A block of log-probabilities; ``tops`` alternatives of each row, None for none at all."""

    coming: Coming
    tops: tuple[int | None, ...]

    @staticmethod
    def of(rows: LogprobRows, tops: Rows[int | None], lane: Lane) -> ComingLogprobs:
        return ComingLogprobs(
            fetch([rows.chosen, rows.top_ids, rows.top_values], lane), tuple(tops)
        )

    def wait(self, token_ids: Rows[int]) -> list[tuple[TokenLogprobs, ...]]:
        """Per row its entry, or nothing."""
        rows = LogprobRows(*self.coming.wait())
        listed = token_logprobs(rows, token_ids, [top or 0 for top in self.tops])
        return [
            () if top is None else (entry,) for top, entry in zip(self.tops, listed, strict=True)
        ]
