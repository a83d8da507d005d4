"""Plain formats: elements one after another, little endian, in C order (``contiguous_le_v1``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.artifact.buffers import Bytes, tensor_bytes, tensor_view
from ninfer_core.artifact.formats.base import Plane, Shape

if TYPE_CHECKING:
    import torch

CONTIGUOUS = "contiguous_le_v1"


@dataclass(frozen=True, slots=True)
class PlainFormat:
    """Elements of one torch dtype, usable in place by CPU and GPU kernels."""

    name: str
    torch_dtype: str
    item_bytes: int
    rms_error_limit: float
    layouts: tuple[str, ...] = (CONTIGUOUS,)
    row_block: int | None = 1

    def planes(self, shape: Shape, layout: str) -> tuple[Plane, ...]:
        return (Plane("values", 0, math.prod(shape) * self.item_bytes),)

    def encode(self, values: torch.Tensor, layout: str) -> tuple[Bytes, ...]:
        return (tensor_bytes(values.to(self._dtype())),)

    def decode(
        self, storage: memoryview, shape: Shape, layout: str, rows: tuple[int, int]
    ) -> torch.Tensor:
        import torch

        width, (start, stop) = shape[-1], rows
        stored = tensor_view(storage, self._dtype(), start * width, (stop - start) * width)
        return stored.to(torch.float32).reshape(stop - start, width)

    def _dtype(self) -> torch.dtype:
        import torch

        dtype = getattr(torch, self.torch_dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype


# Rounding to the nearest of 8 significant bits errs by at most 2^-8 of each normal value.
BF16 = PlainFormat("bf16", "bfloat16", 2, rms_error_limit=2.0**-8)
FP32 = PlainFormat("fp32", "float32", 4, rms_error_limit=0.0)
INT32 = PlainFormat("int32", "int32", 4, rms_error_limit=0.0)
