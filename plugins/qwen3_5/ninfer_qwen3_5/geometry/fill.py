"""Random weights written straight into the planes of their format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ninfer_core.artifact.formats import FP8_ROW, Q4_GROUPS
from ninfer_core.artifact.formats.row_groups import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Generator, Tensor

_STEP: Final = 1 << 24
"""Elements made at once where they are not made in place: bounds the memory beside the planes."""

_FP8_STD: Final = 100.0
"""Standard deviation of fp8 codes: the largest of some thousand then come near 448."""

_Q4_LARGEST: Final = 7
_Q4_STD: Final = 4.320494
"""Of a whole number that is equally likely anywhere in -7..7: sqrt((15^2 - 1) / 12)."""


def fill(
    weight_format: str, planes: Mapping[str, Tensor], columns: int, generator: Generator
) -> None:
    """Fill the planes of a matrix so that it multiplies by values of mean 0, variance 1 / columns.

    ``planes`` are those of the format (``weight`` for a plain one), on the generator's device.
    Normed activations then stay near 1 through any product.
    """
    std = columns**-0.5
    if weight_format == FP8_ROW.name:
        _fill_fp8(planes["codes"], planes["scales"], std, generator)
    elif weight_format == Q4_GROUPS.name:
        _fill_q4(planes["codes"], planes["scales"], columns, std, generator)
    else:
        planes["weight"].normal_(0.0, std, generator=generator)


def _fill_fp8(codes: Tensor, scales: Tensor, std: float, generator: Generator) -> None:
    """Normal codes within +-448; scales spread by a quarter."""
    import torch

    flat = codes.view(-1)
    scratch = torch.empty(min(_STEP, flat.numel()), dtype=torch.bfloat16, device=flat.device)
    for start, stop in _steps(flat.numel()):
        made = scratch[: stop - start].normal_(0.0, _FP8_STD, generator=generator)
        flat[start:stop].copy_(made.clamp_(-448.0, 448.0))
    _spread(scales, std / _FP8_STD, generator)


def _fill_q4(codes: Tensor, scales: Tensor, columns: int, std: float, generator: Generator) -> None:
    """Nibbles equally likely in -7..7, which has no mean; what pads the columns is 0."""
    import torch

    flat = codes.view(-1)
    pair = torch.empty((2, min(_STEP, flat.numel())), dtype=torch.uint8, device=flat.device)
    for start, stop in _steps(flat.numel()):
        pair.random_(0, 2 * _Q4_LARGEST + 1, generator=generator)
        low, high = pair[:, : stop - start]
        low.add_(16 - _Q4_LARGEST).bitwise_and_(15)
        high.add_(16 - _Q4_LARGEST).mul_(16)
        torch.bitwise_or(low, high, out=flat[start:stop])
    _spread(scales, std / _Q4_STD, generator)
    codes[:, (columns + 1) // 2 :] = 0
    if columns % 2:
        codes[:, columns // 2].bitwise_and_(15)
    scales[:, -(-columns // GROUP) :] = 0


def _spread(scales: Tensor, middle: float, generator: Generator) -> None:
    scales.uniform_(0.75 * middle, 1.25 * middle, generator=generator)


def _steps(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _STEP, count)) for start in range(0, count, _STEP))
