"""Moving whole units of a pool between the device and pinned host memory.

A *unit* is a KV page or a state slot: one row of every plane of its pool. Its *image* is those
rows one after another, in the planes' order and without gaps; pages and slots move alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ninfer_core.ops.errors import OpError

if TYPE_CHECKING:
    from torch import Tensor

PIECE_BYTES = 16384
"""The most that a row of ``UnitPlanes.pieces`` names."""

GRAIN = 16
"""Bytes that rows of planes, their addresses and the places of images are multiples of."""


@dataclass(frozen=True, slots=True)
class UnitPlanes:
    """The planes of one pool: ``planes`` [U, ...], contiguous, of one U.

    ``pieces`` i64[Q, 4] lies with them and cuts an image into parts (see :func:`cut_image`): bytes
    from the first byte of ``planes[0]`` to the part in unit 0, bytes from a unit to the next, the
    part's place in the image, its bytes.
    """

    planes: tuple[Tensor, ...]
    pieces: Tensor


def image_bytes(planes: Sequence[Tensor]) -> int:
    """Bytes of one unit over all planes."""
    return sum(_row_bytes(plane) for plane in planes)


def cut_image(planes: Sequence[Tensor]) -> list[tuple[int, int, int, int]]:
    """The rows of ``UnitPlanes.pieces``. Raises OpError for planes that no op moves."""
    rows: list[tuple[int, int, int, int]] = []
    place = 0
    for index, plane in enumerate(planes):
        size, stray = _row_bytes(plane), plane.data_ptr() - planes[0].data_ptr()
        if not plane.is_contiguous() or plane.shape[0] != planes[0].shape[0]:
            raise OpError(
                f"plane {index} {list(plane.shape)} must be contiguous with as many units as the "
                f"first {list(planes[0].shape)}"
            )
        if size % GRAIN or plane.data_ptr() % GRAIN:
            raise OpError(
                f"plane {index}: rows of {size} bytes at {plane.data_ptr():#x}; both must be "
                f"multiples of {GRAIN}"
            )
        for start in range(0, size, PIECE_BYTES):
            length = min(PIECE_BYTES, size - start)
            rows.append((stray + start, size, place + start, length))
        place += size
    return rows


class GatherUnits(Protocol):
    def __call__(self, units: UnitPlanes, moves: Tensor, host: Tensor) -> None:
        """moves i64[N, 2]: a unit, and where its image begins in ``host``, a multiple of
        :data:`GRAIN`; host u8[M]. Both are host memory that the device reaches; neither may change
        until the lane has passed the op.

        *Effect*: the images in ``host``.
        """
        ...


class ScatterUnits(Protocol):
    def __call__(self, units: UnitPlanes, moves: Tensor, host: Tensor) -> None:
        """The way back; operands as for :class:`GatherUnits`, every unit at most once.

        *Effect*: the rows of the named units on every plane.
        """
        ...


def _row_bytes(plane: Tensor) -> int:
    count = 1
    for size in plane.shape[1:]:
        count *= int(size)
    return count * plane.element_size()
