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

GRAIN = 16
"""Bytes that rows of planes, their addresses and the places of images are multiples of."""


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of one size at equal distances, both on the device and in an image, so that one strided
    copy moves them: ``count`` rows of ``size`` bytes. The first of unit 0 begins ``start`` bytes
    behind the first byte of the first plane, that of unit u ``u * size`` bytes further; in the
    image it begins at ``place``. From row to row it is ``step`` bytes on the device and
    ``image_step`` in the image."""

    start: int
    place: int
    size: int
    count: int
    step: int
    image_step: int


@dataclass(frozen=True, slots=True)
class UnitPlanes:
    """The planes of one pool: ``planes`` [U, ...], contiguous, of one U; ``runs`` are their rows in
    as few runs as were found. Made by :func:`unit_planes`."""

    planes: tuple[Tensor, ...]
    runs: tuple[Run, ...]


def image_bytes(planes: Sequence[Tensor]) -> int:
    """Bytes of one unit over all planes."""
    return sum(_row_bytes(plane) for plane in planes)


def unit_planes(planes: Sequence[Tensor]) -> UnitPlanes:
    """The planes with their runs, none of which leaves one allocation. Raises OpError for planes
    that no op moves."""
    rows: list[_Row] = []
    place = 0
    for index, plane in enumerate(planes):
        size = _row_bytes(plane)
        _check(index, plane, planes[0], size)
        start = plane.data_ptr() - planes[0].data_ptr()
        owner = plane.untyped_storage().data_ptr()
        rows.append((Run(start, place, size, 1, size, size), owner))
        place += size
    periods = range(1, _MOST_KINDS + 1)
    return UnitPlanes(tuple(planes), min((_runs(rows, p) for p in periods), key=len))


_MOST_KINDS = 4
"""Planes of a layer: keys, values, and scales of both."""

_Row = tuple[Run, int]
"""A run of one row, and the address of the allocation that it lies in."""


def _check(index: int, plane: Tensor, first: Tensor, size: int) -> None:
    if not plane.is_contiguous() or plane.shape[0] != first.shape[0]:
        raise OpError(
            f"plane {index} {list(plane.shape)} must be contiguous with as many units as the "
            f"first {list(first.shape)}"
        )
    if size % GRAIN or plane.data_ptr() % GRAIN:
        raise OpError(
            f"plane {index}: rows of {size} bytes at {plane.data_ptr():#x}; both must be "
            f"multiples of {GRAIN}"
        )


def _runs(rows: Sequence[_Row], period: int) -> tuple[Run, ...]:
    """Runs of every ``period``-th row."""
    runs: list[Run] = []
    for first in range(min(period, len(rows))):
        run, owner = rows[first]
        for row, its in rows[first + period :: period]:
            longer = _joined(run, row) if its == owner else None
            if longer is None:
                runs.append(run)
            run, owner = longer or row, its
        runs.append(run)
    return tuple(runs)


def _joined(run: Run, row: Run) -> Run | None:
    """The run with one more row, None where that does not lie where it ought to."""
    last = run.count - 1
    step = row.start - run.start - last * run.step
    image_step = row.place - run.place - last * run.image_step
    fits = run.count == 1 or (step, image_step) == (run.step, run.image_step)
    if row.size != run.size or step < run.size or not fits:
        return None
    return Run(run.start, run.place, run.size, run.count + 1, step, image_step)


class GatherUnits(Protocol):
    def __call__(self, units: UnitPlanes, moves: Tensor, host: Tensor) -> None:
        """moves i64[N, 2], read before the call returns: a unit, and where its image begins in
        ``host``, a multiple of :data:`GRAIN`; host u8[M], host memory that the device reaches.
        Raises OpError for a move of what is not there.

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
