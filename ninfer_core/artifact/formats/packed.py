"""What packed formats share: typed views of their planes, and what must hold for scales."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ninfer_core.artifact.buffers import tensor_view
from ninfer_core.artifact.errors import ArtifactError
from ninfer_core.artifact.formats.base import Plane

if TYPE_CHECKING:
    import torch


def plane_rows(storage: memoryview, plane: Plane, rows: tuple[int, int]) -> torch.Tensor:
    """Rows ``[rows[0], rows[1])`` of a plane as ``[n, *row_shape]`` of its dtype.

    Shares the memory of ``storage`` unless the plane stands at an address that its dtype forbids.
    """
    import torch

    assert plane.dtype is not None
    (start, stop), dtype = rows, getattr(torch, plane.dtype)
    row_bytes = math.prod(plane.row_shape) * dtype.itemsize
    first, count = plane.offset + start * row_bytes, (stop - start) * row_bytes
    data = tensor_view(storage, torch.uint8, first, count)
    if data.data_ptr() % dtype.itemsize:
        data = data.clone()
    return data.view(dtype).reshape(stop - start, *plane.row_shape)


def refuse_not_finite(format_name: str, values: torch.Tensor) -> None:
    """Raise `ArtifactError` where ``values`` holds NaN or an infinity."""
    if not bool(values.isfinite().all()):
        raise ArtifactError(
            f"weight format {format_name!r}",
            "has no code for NaN and infinity",
            "give finite values",
        )


def scale_faults(scales: torch.Tensor, coded: torch.Tensor) -> Iterator[str]:
    """What is wrong with ``scales``; ``coded`` tells which of them apply to a code other than 0."""
    if bool((scales < 0).any()):
        yield "has negative scales"
    if bool(((scales == 0) & coded).any()):
        yield "has codes other than zero under a scale of zero"
