"""Moving pages and state slots to pinned host memory and back, by the device's copy engines.

No kernel moves them: one that reads and writes host memory holds up all others' memory accesses.
A copy engine takes rows at equal distances at once, so that a page is one copy or a few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ninfer_core.device.strided import StridedCopies, copy_here, enqueue
from ninfer_core.ops.contracts.transfers import GRAIN, UnitPlanes, image_bytes
from ninfer_core.ops.errors import OpError


def gather_units(units: UnitPlanes, moves: Tensor, host: Tensor) -> None:
    _move(units, moves, host, gather=True)


def scatter_units(units: UnitPlanes, moves: Tensor, host: Tensor) -> None:
    _move(units, moves, host, gather=False)


def _move(units: UnitPlanes, moves: Tensor, host: Tensor, *, gather: bool) -> None:
    """Raises OpError for operands that the contract does not allow."""
    _check(units, moves, host)
    copies = _copies(units, moves.numpy(), host, gather)
    if units.planes[0].is_cuda:
        enqueue(copies, torch.cuda.current_stream().cuda_stream, str(units.planes[0].device))
    else:
        copy_here(copies)


def _check(units: UnitPlanes, moves: Tensor, host: Tensor) -> None:
    if moves.ndim != 2 or moves.shape[1] != 2 or moves.dtype != torch.int64:
        raise OpError(f"moves is {moves.dtype}{list(moves.shape)}; it must be i64[N, 2]")
    if moves.is_cuda or host.is_cuda:
        raise OpError("moves and host must lie in host memory")
    if host.ndim != 1 or host.dtype != torch.uint8 or host.data_ptr() % GRAIN:
        raise OpError(
            f"host is {host.dtype}{list(host.shape)} at {host.data_ptr():#x}; it must be u8[M] at "
            f"a multiple of {GRAIN}"
        )
    if not host.is_contiguous():
        raise OpError("host must be contiguous")
    count, last = units.planes[0].shape[0], host.numel() - image_bytes(units.planes)
    listed = moves.numpy()
    unit, image = listed[:, 0], listed[:, 1]
    wrong = (unit < 0) | (unit >= count) | (image < 0) | (image > last) | (image % GRAIN != 0)
    for unit, image in listed[wrong].tolist():
        if not 0 <= unit < count:
            raise OpError(f"unit {unit} of a pool of {count} was moved")
        raise OpError(
            f"an image at {image} of a host memory of {host.numel()} bytes; it must lie inside "
            f"and begin at a multiple of {GRAIN}"
        )


def _copies(
    units: UnitPlanes, moves: NDArray[np.int64], host: Tensor, gather: bool
) -> StridedCopies:
    """A copy for each run of each move."""
    runs = np.array(
        [(r.start, r.place, r.size, r.count, r.step, r.image_step) for r in units.runs], np.int64
    )
    start, place, size, count, step, image_step = runs.T
    device = units.planes[0].data_ptr() + start + moves[:, :1] * size
    image = host.data_ptr() + place + moves[:, 1:]
    return StridedCopies(
        to_host=gather,
        device=device.ravel(),
        host=image.ravel(),
        size=np.tile(size, len(moves)),
        count=np.tile(count, len(moves)),
        device_step=np.tile(step, len(moves)),
        host_step=np.tile(image_step, len(moves)),
    )


OPS: Mapping[str, Callable[..., Any]] = {
    "gather_units": gather_units,
    "scatter_units": scatter_units,
}
"""Op name to function."""
