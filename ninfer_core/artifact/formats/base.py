"""What a weight format is: sizes by formula, an encoder, and a float32 reference decoder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from ninfer_core.artifact.buffers import Bytes

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plane:
    """Bytes of one kind (codes, high bits, scales); ``offset`` from the stored tensor's start.

    ``dtype`` names the torch dtype of its elements and ``row_shape`` their shape in one row of the
    tensor, so that consumers can take the plane as it is: ``[rows, *row_shape]``. Where a plane of
    a packed format has none, its tensors reach consumers decoded to float32.
    """

    name: str
    offset: int
    bytes: int
    dtype: str | None = None
    row_shape: Shape = ()


class WeightFormat(Protocol):
    """A numeric format and the layouts it can be stored in.

    A tensor is ``n`` rows along its last axis: ``n`` is the product of the other dimensions, 1 for
    a vector. ``row_block`` is the number of rows that can be encoded apart from the others (every
    plane then holds the same number of bytes per row); None means the whole tensor at once.
    ``rms_error_limit`` is the largest rms relative error that a sound conversion shows.
    ``torch_dtype`` names the torch dtype of the stored elements where they can be used in place.
    """

    @property
    def name(self) -> str: ...
    @property
    def layouts(self) -> tuple[str, ...]: ...
    @property
    def rms_error_limit(self) -> float: ...
    @property
    def row_block(self) -> int | None: ...
    @property
    def torch_dtype(self) -> str | None: ...

    def planes(self, shape: Shape, layout: str) -> tuple[Plane, ...]:
        """The planes of a tensor; raises `ArtifactError` for a shape that it cannot store."""
        ...

    def encode(self, values: torch.Tensor, layout: str) -> tuple[Bytes, ...]:
        """Bytes of each plane, in the order of `planes`, for floating ``values`` [rows, width]."""
        ...

    def decode(
        self, storage: memoryview, shape: Shape, layout: str, rows: tuple[int, int]
    ) -> torch.Tensor:
        """Rows ``[rows[0], rows[1])`` of the tensor in ``storage`` as float32 [n, width]."""
        ...


@runtime_checkable
class StrictFormat(Protocol):
    """A weight format that also tells what its encoder would never write."""

    def faults(
        self, storage: memoryview, shape: Shape, layout: str, rows: tuple[int, int]
    ) -> Iterator[str]:
        """What is wrong with rows ``[rows[0], rows[1])``, in words."""
        ...


def storage_bytes(weight_format: WeightFormat, shape: Shape, layout: str) -> int:
    """Bytes of a stored tensor of ``shape``: the end of its last plane."""
    return max(plane.offset + plane.bytes for plane in weight_format.planes(shape, layout))


def row_count(shape: Shape) -> int:
    """Rows along the last axis."""
    return math.prod(shape[:-1])


def row_blocks(rows: int, width: int, step: int, max_elements: int) -> Iterator[tuple[int, int]]:
    """Ranges that tile ``rows``: about ``max_elements`` each, sizes multiples of ``step``."""
    size = max(max_elements // width // step, 1) * step
    return ((start, min(start + size, rows)) for start in range(0, rows, size))
