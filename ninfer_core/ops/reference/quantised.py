"""Quantised weights, widened to float32 exactly by the decoders that define their formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from ninfer_core.artifact.formats import FP8_ROW, Q4_GROUPS, WeightFormat
from ninfer_core.artifact.formats.row_groups import decode_grouped
from ninfer_core.artifact.formats.row_scale import decode_row_scaled
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.errors import OpError

_Decoder: TypeAlias = Callable[[Mapping[str, Tensor], int], Tensor]

_READ: Mapping[str, tuple[WeightFormat, _Decoder]] = {
    FP8_ROW.name: (
        FP8_ROW,
        lambda planes, columns: decode_row_scaled(planes["codes"], planes["scales"]),
    ),
    Q4_GROUPS.name: (
        Q4_GROUPS,
        lambda planes, columns: decode_grouped(planes["codes"], planes["scales"], columns),
    ),
}

QUANTISED = frozenset(_READ)
"""Formats that :func:`widened` reads."""


def widened(weight: WeightMatrix) -> Tensor:
    """f32[rows, columns]; raises OpError for planes of another shape, dtype or device."""
    _check_planes(weight)
    _, decode = _READ[weight.format]
    return decode(weight.planes, weight.columns)


def widened_rows(weight: WeightMatrix, ids: Tensor) -> Tensor:
    """f32[T, columns]: the rows ``ids`` i32[T] of :func:`widened`."""
    _check_planes(weight)
    _, decode = _READ[weight.format]
    # Rows are taken as bytes, because torch does not index every dtype.
    taken = {
        name: _bytes(plane).index_select(0, ids).view(plane.dtype).reshape(-1, *plane.shape[1:])
        for name, plane in weight.planes.items()
    }
    return decode(taken, weight.columns)


def _bytes(plane: Tensor) -> Tensor:
    return plane.reshape(plane.shape[0], -1).view(torch.uint8)


def _check_planes(weight: WeightMatrix) -> None:
    weight_format, _ = _READ[weight.format]
    shape = (weight.rows, weight.columns)
    for plane in weight_format.planes(shape, weight_format.layouts[0]):
        given = weight.planes.get(plane.name)
        wanted = ([weight.rows, *plane.row_shape], f"torch.{plane.dtype}")
        found = None if given is None else (list(given.shape), str(given.dtype))
        if given is None or found != wanted:
            raise OpError(
                f"plane {plane.name!r} of a {weight.format} weight is {_words(found)}; "
                f"it must be {_words(wanted)}"
            )
        if given.device.type != "cpu":
            raise OpError(f"the reference ops multiply on the CPU, not on {given.device}")


def _words(plane: tuple[list[int], str] | None) -> str:
    return "missing" if plane is None else f"{plane[1].removeprefix('torch.')}{plane[0]}"
