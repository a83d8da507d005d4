"""Rotary positions of a stretch of a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_qwen3_5.program.sequence import Sequence

if TYPE_CHECKING:
    from torch import Tensor


def rotary_positions(sequence: Sequence, start: int, stop: int) -> Tensor:
    """i32[3, n] on the host: the prompt's own, then logical position plus its delta."""
    import torch

    prepared = sequence.request.prepared
    own = prepared.positions
    if own is None or start >= prepared.length:
        line = torch.arange(start, stop, dtype=torch.int32) + prepared.rope_delta
        return line.expand(3, -1)
    inside = torch.from_numpy(own[:, start:stop])
    beyond = torch.arange(start + inside.shape[1], stop, dtype=torch.int32)
    return torch.cat([inside, (beyond + prepared.rope_delta).expand(3, -1)], dim=1)
