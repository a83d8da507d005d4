"""Weights as these kernels read them: stored planes, checked once at load.

The scales of four-bit groups are the exception. A step of a product reads a few groups of many
rows, so they are kept by group: those of neighbouring rows lie side by side.
"""

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

Q4_BY_GROUP = f"triton.{Q4_GROUPS.name}"
"""The resident form of ``q4_g64_fp16``: ``codes`` as stored, ``scales`` fp16[row_groups, rows]."""

KINDS: Mapping[str, str] = {"bf16": "bf16", FP8_ROW.name: "fp8", Q4_BY_GROUP: "q4"}
"""Formats of prepared weights and what kernels call them."""

_STORED = {"bf16", FP8_ROW.name, Q4_GROUPS.name}

_Planes = dict[str, tuple[tuple[int, ...], torch.dtype]]


def prepare_linear(weight: WeightMatrix) -> WeightMatrix:
    """The weight in the form that kernels read: itself, but for four-bit groups, whose scales are
    put in the order of :data:`Q4_BY_GROUP`. On a GPU that happens in the plane's own memory, which
    the weight that is given must not be used for afterwards.

    Raises OpError for a format that kernels do not read, and a plane that is missing, of another
    shape or dtype, not contiguous, at an odd address, or not on the GPU.
    """
    if weight.format not in {*KINDS, *_STORED}:
        raise OpError(
            f"the triton ops do not read weight format {weight.format!r}",
            hint=f"they read {', '.join(sorted(_STORED))}",
        )
    for name, (shape, dtype) in _planes(weight).items():
        _check(weight, name, shape, dtype)
    devices = {plane.device for plane in weight.planes.values()}
    if len(devices) != 1:
        raise OpError(f"the planes of a {weight.format} weight lie on several devices: {devices}")
    workspace.reserve(devices.pop())
    return _by_group(weight) if weight.format == Q4_GROUPS.name else weight


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


def scale_steps(weight: WeightMatrix) -> tuple[int, int]:
    """Elements of ``scales`` from a row to the next, and from a group to the next."""
    if weight.format == Q4_BY_GROUP:
        return 1, weight.rows
    return (padded_columns(weight.columns) // 64, 1) if weight.format == Q4_GROUPS.name else (1, 0)


def _by_group(weight: WeightMatrix) -> WeightMatrix:
    plane = weight.planes["scales"]
    turned = plane.t().clone(memory_format=torch.contiguous_format)
    # The memory of a host may be a file's.
    scales = plane.view(turned.shape).copy_(turned) if plane.is_cuda else turned
    planes = {"codes": weight.planes["codes"], "scales": scales}
    return WeightMatrix(Q4_BY_GROUP, weight.rows, weight.columns, planes)


def _planes(weight: WeightMatrix) -> _Planes:
    rows, columns = weight.rows, weight.columns
    if rows < 1 or columns < 1:
        raise OpError(f"a weight of {rows} rows and {columns} columns multiplies nothing")
    if weight.format == "bf16":
        return {"weight": ((rows, columns), torch.bfloat16)}
    if weight.format == FP8_ROW.name:
        return {
            "codes": ((rows, columns), torch.float8_e4m3fn),
            "scales": ((rows,), torch.bfloat16),
        }
    padded = padded_columns(columns)
    scales = (rows, padded // 64) if weight.format == Q4_GROUPS.name else (padded // 64, rows)
    return {"codes": ((rows, padded // 2), torch.uint8), "scales": (scales, torch.float16)}


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
    if dtype == torch.uint8 and plane.data_ptr() % 2:
        raise OpError(f"{label} must begin at a multiple of 2 bytes")
    if plane.device.type != ("cpu" if INTERPRET else "cuda"):
        raise OpError(f"the triton ops multiply on a GPU, not on {plane.device}")
