"""Products of many rows with E4M3 weights over activations that are rounded to E4M3 too (A8).

The weight's own codes are multiplied, so that nothing is widened, by tensor cores that take twice
as many eight-bit products a second as sixteen-bit ones. Which weights may go this way is settled
once, when they are prepared; which calls do, by the number of rows.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ninfer_core.artifact.formats import FP8_ROW
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_ops_triton.kernels.quantise import quantise_rows_kernel
from ninfer_ops_triton.launch import capability, launch

ROWS = 128
"""A call of more rows than this is computed with rounded activations; one of as many or fewer is
limited by reading the weight, whichever way it is computed."""

OLDEST_CAPABILITY = (8, 9)
"""Tensor cores multiply E4M3 from here on."""

MULTIPLE = 16
"""The library takes rows and columns of a weight by so many, and planes from such addresses."""

WIDE_SCALES = "wide_scales"
"""The plane f32[rows] beside ``codes`` and ``scales`` of a prepared weight that may go this way."""

_BLOCK = 2048
"""Elements of a row that a program rounds at once."""


def admitted(weight: WeightMatrix) -> WeightMatrix:
    """``weight``, with the scales that the library reads beside its planes where activations may
    be rounded here, without the permission where the device or the sizes do not allow it."""
    if not weight.allow_a8 or WIDE_SCALES in weight.planes:
        return weight
    if not _fits(weight):
        return replace(weight, allow_a8=False)
    planes = {**weight.planes, WIDE_SCALES: weight.planes["scales"].float()}
    return replace(weight, planes=planes)


def applies(weight: WeightMatrix, rows: int) -> bool:
    """Whether a product of so many rows with a prepared weight rounds its activations."""
    return weight.allow_a8 and rows > ROWS


def rounded_product(x: Tensor, weight: WeightMatrix) -> Tensor:
    """bf16[T, rows] of x bf16[T, columns], for a weight and a T that this :func:`applies` to.

    Sums are kept in fp32 at full precision: the library's faster ones keep fewer bits.
    """
    codes, scales = quantised_rows(x)
    out: Tensor = torch._scaled_mm(
        codes,
        weight.planes["codes"].t(),
        scale_a=scales,
        scale_b=weight.planes[WIDE_SCALES].view(1, -1),
        out_dtype=torch.bfloat16,
        use_fast_accum=False,
    )
    return out


def quantised_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes e4m3[T, K] and scales f32[T, 1] of x bf16[T, K]."""
    x = x.contiguous()
    count, width = x.shape
    codes = torch.empty((count, width), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((count, 1), dtype=torch.float32, device=x.device)
    launch(
        quantise_rows_kernel, (count,),
        x.view(torch.int16), codes.view(torch.uint8), scales, width, dependent=True, BLOCK=_BLOCK,
    )  # fmt: skip
    return codes, scales


def _fits(weight: WeightMatrix) -> bool:
    sizes = weight.rows % MULTIPLE == 0 and weight.columns % MULTIPLE == 0
    return (
        weight.format == FP8_ROW.name
        and sizes
        and capability() >= OLDEST_CAPABILITY
        and weight.planes["codes"].data_ptr() % MULTIPLE == 0
    )
