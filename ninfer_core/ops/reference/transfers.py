"""Images of units, a row at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ninfer_core.ops.contracts.transfers import UnitPlanes
from ninfer_core.ops.errors import OpError


def gather_units(units: UnitPlanes, moves: Tensor, host: Tensor) -> None:
    for row, image in _rows(units, moves, host):
        image.copy_(row)


def scatter_units(units: UnitPlanes, moves: Tensor, host: Tensor) -> None:
    for row, image in _rows(units, moves, host):
        row.copy_(image)


def _rows(units: UnitPlanes, moves: Tensor, host: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Every row as bytes, with its part of the host's memory."""
    count = units.planes[0].shape[0]
    for unit, place in moves.tolist():
        if not 0 <= unit < count:
            raise OpError(f"unit {unit} of a pool of {count} was moved")
        for plane in units.planes:
            row = plane[unit].view(-1).view(torch.uint8)
            image = host[place : place + row.numel()]
            if image.numel() != row.numel():
                raise OpError(f"an image at {place} does not end within {host.numel()} bytes")
            yield row, image
            place += row.numel()
