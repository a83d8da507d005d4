"""What the device keeps between speculative rounds, at fixed places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.verifying import DRAFTS, SettledRows

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ninfer_core.device.base import Arena


def kept_words(arena: Arena, count: int, width: int) -> Tensor:
    """How each lane goes on, i32[L, 6 + K] (``ninfer_core.ops.contracts.verifying``)."""
    import torch

    return arena.take("spec.next", (count, DRAFTS + width - 1), torch.int32).zero_()


def settled_rows(arena: Arena, count: int, drafts: int, *, block: bool) -> SettledRows:
    """Where the drafts of rounds of ``count`` rows begin, at fixed places."""
    import torch

    places, wide = (1, drafts + 1) if block else (drafts, 1)

    def take(name: str, *shape: int, kind: torch.dtype = torch.int32) -> Tensor:
        return arena.take(f"spec.{count}.{name}", shape, kind).zero_()

    return SettledRows(
        tokens=take("token", count),
        last=take("row", count, kind=torch.int64),
        starts=take("starts", places, count),
        live=take("columns", places, count),
        tables=take("lanes", places, count),
        positions=take("positions", 3, places, count * wide),
    )


def kept_bytes(count: int, width: int) -> int:
    """An upper bound of what is taken of the arena, for rounds of up to ``count`` rows."""
    settled = sum(4 * size * (3 + 6 * width) + 6 * 256 for size in range(1, count + 1))
    return 4 * count * (width + DRAFTS) + 256 + settled
