"""What a weight format is: sizes by formula, an encoder, and a float32 reference decoder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from ninfer_core.artifact.buffers import Bytes

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plane:
    """Bytes of one kind (codes, high bits, scales); ``offset`` from the stored tensor's start."""

    name: str
    offset: int
    bytes: int


class WeightFormat(Protocol):
    """A numeric format and the layouts it can be stored in.

    ``rms_error_limit`` is the largest rms relative error a sound conversion shows. ``row_block`` is
    the number of rows (entries of the first axis) that can be encoded apart from the others: every
    plane then holds the same number of bytes per row. ``None`` means the whole tensor at once.
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
        """Bytes of each plane, in the order of `planes`, for a whole tensor or a block of rows."""
        ...

    def decode(
        self, storage: memoryview, shape: Shape, layout: str, rows: tuple[int, int]
    ) -> torch.Tensor:
        """Entries ``[rows[0], rows[1])`` of the first axis as float32 ``[n, *shape[1:]]``."""
        ...


def storage_bytes(weight_format: WeightFormat, shape: Shape, layout: str) -> int:
    """Bytes of a stored tensor of ``shape``: the end of its last plane."""
    return max(plane.offset + plane.bytes for plane in weight_format.planes(shape, layout))


def row_elements(shape: Shape) -> int:
    """Elements in one entry of the first axis."""
    return math.prod(shape[1:])


def row_blocks(
    weight_format: WeightFormat, shape: Shape, max_elements: int
) -> Iterator[tuple[int, int]]:
    """Cut the first axis into ranges of about ``max_elements`` that the format can treat apart."""
    rows, block = shape[0], weight_format.row_block
    if block is None:
        yield 0, rows
        return
    step = max(max_elements // row_elements(shape) // block, 1) * block
    for start in range(0, rows, step):
        yield start, min(start + step, rows)
