"""Weights as these kernels read them: stored planes, checked once at load.

Four-bit groups are the exception (:data:`Q4_TILED`). A step of a product reads a few groups of many
rows, so their codes are kept in blocks of 16 rows by 64 columns, and their scales by group: what a
step reads lies side by side.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from ninfer_core.artifact.formats import FP8_ROW, Q4_GROUPS
from ninfer_core.artifact.formats.row_groups import padded_columns
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton import workspace
from ninfer_ops_triton.launch import INTERPRET
from ninfer_ops_triton.rounded import admitted

TILE_ROWS = 16
"""Rows of a block of codes; a weight has whole blocks, the rows that fill the last one being 0."""

Q4_TILED = f"triton.{Q4_GROUPS.name}"
"""The resident form of ``q4_g64_fp16`` of R rows, R16 with those that fill the last block.

``codes`` u8[R16, row_bytes], by block of 16 rows, then by group of 64 columns, in 512 bytes: thread
4 r + q of a warp has 16 of them, four words of eight columns: 8 q on of row 2 r, of row 2 r + 1,
8 q + 32 on of row 2 r, of row 2 r + 1. So a warp reads its operands of four tensor-core products
[16, 16] in one piece. ``scales`` fp16[row_groups, R16].
"""

KINDS: Mapping[str, str] = {"bf16": "bf16", FP8_ROW.name: "fp8", Q4_TILED: "q4"}
"""Formats of prepared weights and what kernels call them."""

TURNED_BYTES = 32 << 20
"""Codes are put in order so many bytes at a time, which is what that takes beside them."""

_STORED = {"bf16", FP8_ROW.name, Q4_GROUPS.name}

_Planes = dict[str, tuple[tuple[int, ...], torch.dtype]]


def prepare_linear(weight: WeightMatrix) -> WeightMatrix:
    """The weight in the form that kernels read: itself, but for four-bit groups, which are put in
    the order of :data:`Q4_TILED`. On a GPU that happens in the planes' own memory, if they have
    whole blocks; the weight that is given must not be used afterwards. Where activations may be
    rounded, E4M3 gets its scales in fp32 beside (:func:`ninfer_ops_triton.rounded.admitted`).

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
    return _tiled(weight) if weight.format == Q4_GROUPS.name else admitted(weight)


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
    if weight.format == Q4_TILED:
        return 1, stored_rows(weight)
    return (padded_columns(weight.columns) // 64, 1) if weight.format == Q4_GROUPS.name else (1, 0)


def stored_rows(weight: WeightMatrix) -> int:
    """Rows with those that fill the last block."""
    return -(-weight.rows // TILE_ROWS) * TILE_ROWS if weight.format == Q4_TILED else weight.rows


def _tiled(weight: WeightMatrix) -> WeightMatrix:
    codes, scales = weight.planes["codes"], weight.planes["scales"]
    missing = -weight.rows % TILE_ROWS
    if missing:
        codes, scales = (pad(plane, (0, 0, 0, missing)) for plane in (codes, scales))
    elif not codes.is_cuda:
        # The memory of a host may be a file's.
        codes, scales = codes.clone(), scales.clone()
    rows, row_bytes = codes.shape
    step = max(1, TURNED_BYTES // (TILE_ROWS * row_bytes)) * TILE_ROWS
    for first in range(0, rows, step):
        block = codes[first : first + step]
        block.copy_(_turned(block))
    turned = scales.t().clone(memory_format=torch.contiguous_format)
    planes = {"codes": codes, "scales": scales.view(turned.shape).copy_(turned)}
    return WeightMatrix(Q4_TILED, weight.rows, weight.columns, planes)


def _turned(codes: Tensor) -> Tensor:
    """Whole blocks of codes in the order of :data:`Q4_TILED`, u8 as they were."""
    rows, row_bytes = codes.shape
    words = codes.view(torch.int32).view(rows // TILE_ROWS, 8, 2, row_bytes // 32, 2, 4)
    # Block, pair of rows, row, group, half of its columns, thread.
    return words.permute(0, 3, 1, 5, 4, 2).contiguous().view(torch.uint8).view(rows, row_bytes)


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
    padded, rows = padded_columns(columns), stored_rows(weight)
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
    if dtype == torch.uint8 and plane.data_ptr() % 4:
        raise OpError(f"{label} must begin at a multiple of 4 bytes")
    if plane.device.type != ("cpu" if INTERPRET else "cuda"):
        raise OpError(f"the triton ops multiply on a GPU, not on {plane.device}")
