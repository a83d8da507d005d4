"""Memory that kernels keep between launches."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

COUNTERS = 16384


def reserve(device: torch.device) -> None:
    """Allocate what :func:`counters` gives, outside of any capture."""
    counters(device)


@lru_cache
def counters(device: torch.device) -> Tensor:
    """i32[COUNTERS] zeros that kernels of one stream use in turn and leave as zeros.

    A program that finds ``n - 1`` in its counter is the last of n; it puts the zero back. A
    dependent launch touches them only after its wait, so one array serves all kernels of a stream.
    """
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)
