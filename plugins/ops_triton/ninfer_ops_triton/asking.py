"""Weights that are asked for ahead, by programs beside those of a mixer.

A mixer's programs are few and wait for bytes one after the other: for some microseconds most of the
machine and its memory are idle. So its grid gets some programs more, which ask the L2 cache for the
first bytes of the weights that are read next. Values do not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_ops_triton.kernels.asking import PIECE
from ninfer_ops_triton.launch import cdiv, supports_dependent_launch
from ninfer_ops_triton.weights import codes_and_scales

BYTES = 16 << 20
"""That a mixer asks for: what memory gives in the 3 to 4 us that it would be idle, and a third of
the cache."""

Asked = tuple[Tensor, int, Tensor, int]
"""Two planes of codes, and how many of their first bytes are asked for."""


def asked(following: Sequence[WeightMatrix], otherwise: Tensor) -> Asked:
    """What to ask for of the next two weights; ``otherwise`` stands for one that is not there."""
    planes = [codes_and_scales(weight)[0] for weight in following[:2]]
    left = BYTES if supports_dependent_launch() else 0
    found: list[tuple[Tensor, int]] = []
    for plane in planes:
        size = min(left, plane.numel() * plane.element_size()) & ~15
        found.append((plane, size if plane.data_ptr() % 16 == 0 else 0))
        left -= found[-1][1]
    (first, size), (second, second_size) = [*found, (otherwise, 0), (otherwise, 0)][:2]
    return first, size, second, second_size


def programs(what: Asked, warps: int) -> int:
    """That ask for it, with ``warps`` warps each."""
    piece = PIECE.value
    count: int = cdiv(cdiv(what[1], piece) + cdiv(what[3], piece), warps * 32)
    return count
