"""The constant tables of interleaved multi-axis rotary positions, built once at load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ninfer_core.ops.errors import OpError

if TYPE_CHECKING:
    from torch import Tensor


def inverse_frequencies(rotary_dim: int, theta: float) -> Tensor:
    """``theta^(-2j / rotary_dim)`` for ``j < rotary_dim / 2``, f32[rotary_dim / 2].

    ``rotary_dim`` is the rotated part of a head: head size times the partial rotary factor.
    """
    import torch

    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    return 1.0 / theta**exponents


def interleaved_axes(section: Sequence[int]) -> Tensor:
    """Which axis (0 time, 1 height, 2 width) turns frequency ``j``: i64[sum(section)].

    Height takes ``j % 3 == 1`` below ``3 * section[1]``, width ``j % 3 == 2`` below ``3 *
    section[2]``, time the rest. Raises OpError unless three sections come out in these counts.
    """
    import torch

    if len(section) != 3 or min(section) < 0:
        raise OpError(f"mrope_section is {list(section)}; it must be three counts")
    frequencies = torch.arange(sum(section))
    axes = torch.zeros(sum(section), dtype=torch.int64)
    for axis in (1, 2):
        axes[(frequencies % 3 == axis) & (frequencies < 3 * section[axis])] = axis
    counts = torch.bincount(axes, minlength=3).tolist()
    if counts != list(section):
        raise OpError(f"mrope_section {list(section)} cannot be interleaved: it gives {counts}")
    return axes
