"""Weights as these kernels read them: stored planes, checked once at load."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ninfer_core.artifact.formats import FP8_ROW, Q4_GROUPS
from ninfer_core.artifact.formats.row_groups import padded_columns
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton import workspace
from ninfer_ops_triton.launch import INTERPRET

KINDS: Mapping[str, str] = {"bf16": "bf16", FP8_ROW.name: "fp8", Q4_GROUPS.name: "q4"}
"""Weight formats and what kernels call them."""

_Planes = dict[str, tuple[tuple[int, ...], torch.dtype]]


def prepare_linear(weight: WeightMatrix) -> WeightMatrix:
    """The weight itself: kernels read the planes as stored. Raises OpError for a format that they
    do not read, and a plane that is missing, of another shape or dtype, not contiguous, or not on
    the GPU."""
    if weight.format not in KINDS:
        raise OpError(
            f"the triton ops do not read weight format {weight.format!r}",
            hint=f"they read {', '.join(sorted(KINDS))}",
        )
    for name, (shape, dtype) in _planes(weight).items():
        _check(weight, name, shape, dtype)
    devices = {plane.device for plane in weight.planes.values()}
    if len(devices) != 1:
        raise OpError(f"the planes of a {weight.format} weight lie on several devices: {devices}")
    workspace.reserve(devices.pop())
    return weight


def kind_of(weight: WeightMatrix) -> str:
    """``bf16``, ``fp8`` or ``q4``; raises OpError for a weight that is none of these."""
    try:
        return KINDS[weight.format]
    except KeyError:
        raise OpError(
            f"a {weight.format!r} weight is not prepared; pass it to prepare_linear"
        ) from None


def codes_and_scales(weight: WeightMatrix) -> tuple[Tensor, Tensor]:
    """The planes in the order that kernels take them; bf16 has its weight in both places."""
    planes = weight.planes
    if weight.format == "bf16":
        return planes["weight"], planes["weight"]
    return planes["codes"], planes["scales"]


def _planes(weight: WeightMatrix) -> _Planes:
    rows, columns = weight.rows, weight.columns
    if rows < 1 or columns < 1:
        raise OpError(f"a weight of {rows} rows and {columns} columns multiplies nothing")
    match KINDS[weight.format]:
        case "bf16":
            return {"weight": ((rows, columns), torch.bfloat16)}
        case "fp8":
            return {
                "codes": ((rows, columns), torch.float8_e4m3fn),
                "scales": ((rows,), torch.bfloat16),
            }
        case _:
            padded = padded_columns(columns)
            return {
                "codes": ((rows, padded // 2), torch.uint8),
                "scales": ((rows, padded // 64), torch.float16),
            }


def _check(weight: WeightMatrix, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    plane = weight.planes.get(name)
    label = f"plane {name!r} of a {weight.format} weight [{weight.rows}, {weight.columns}]"
    if plane is None:
        raise OpError(f"{label} is missing")
    if tuple(plane.shape) != shape or plane.dtype != dtype:
        raise OpError(
            f"{label} is {plane.dtype}{list(plane.shape)}; it must be {dtype}{list(shape)}"
        )
    if not plane.is_contiguous():
        raise OpError(f"{label} is not contiguous", hint="pass plane.contiguous()")
    if weight.format == Q4_GROUPS.name and name == "scales" and plane.data_ptr() % 8:
        raise OpError(f"{label} must begin at a multiple of 8 bytes")
    if plane.device.type != ("cpu" if INTERPRET else "cuda"):
        raise OpError(f"the triton ops multiply on a GPU, not on {plane.device}")
