"""Bound matrices as their formats encode them: planes by name, the way ops take weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.artifact.errors import ArtifactError
from ninfer_core.artifact.formats import FP32, row_count
from ninfer_core.artifact.formats.packed import plane_rows

if TYPE_CHECKING:
    import torch

    from ninfer_core.artifact.binding import BoundTensor

WEIGHT = "weight"
"""The one plane of a format whose elements can be used in place."""


@dataclass(frozen=True, slots=True)
class EncodedMatrix:
    """A matrix ``[rows, columns]``: the name of its format and CPU tensors of its planes.

    The tensors share the mapped file wherever the rows lie side by side in it: do not write to
    them. Plain formats have the plane ``weight`` [rows, columns]; the planes of a packed format are
    those of its `WeightFormat`, each [rows, *row_shape].
    """

    format: str
    rows: int
    columns: int
    planes: Mapping[str, torch.Tensor]


def encoded(bound: BoundTensor) -> EncodedMatrix:
    """The planes of ``bound``, whose views must have one format.

    A packed format that does not describe its planes arrives decoded, as ``fp32``. Raises
    `ArtifactError` for mixed formats and for a packed view that cuts through a row.
    """
    rows, columns = row_count(bound.shape), bound.shape[-1]
    name = _one_format(bound)
    if all(view.format.torch_dtype is not None for view in bound.views):
        plane = bound.to_torch().reshape(rows, columns)
        return EncodedMatrix(name, rows, columns, {WEIGHT: plane})
    if any(plane.dtype is None for view in bound.views for plane in view.planes):
        import torch

        plane = bound.to_torch(torch.float32).reshape(rows, columns)
        return EncodedMatrix(FP32.name, rows, columns, {WEIGHT: plane})
    return EncodedMatrix(name, rows, columns, _stacked(bound, columns))


def _one_format(bound: BoundTensor) -> str:
    names = sorted({view.format.name for view in bound.views})
    if len(names) > 1:
        raise ArtifactError(
            bound.parameter,
            f"are read by one fused call, but stored in the formats {', '.join(names)}",
            "convert again with one format for all of them",
        )
    return names[0]


def _stacked(bound: BoundTensor, columns: int) -> dict[str, torch.Tensor]:
    parts = []
    for view in bound.views:
        rows = view.rows
        if rows is None or view.parent.shape[-1] != columns:
            raise ArtifactError(
                bound.parameter,
                f"does not consist of whole rows of {view.parent.id!r}, "
                f"which {view.format.name} stores row by row",
                "convert the checkpoint again",
            )
        parts.append({p.name: plane_rows(view.storage, p, rows) for p in view.planes})
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """``parts`` by rows; as bytes, because torch does not join every dtype."""
    import torch

    if len(parts) == 1:
        return parts[0]
    dtype, shape = parts[0].dtype, parts[0].shape[1:]
    joined = torch.cat([part.reshape(-1).view(torch.uint8) for part in parts])
    return joined.view(dtype).reshape(-1, *shape)
