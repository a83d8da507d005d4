"""Images of units, byte by byte, by hand arithmetic."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.ops.contracts.transfers import PIECE_BYTES, UnitPlanes, cut_image, image_bytes
from ninfer_core.ops.errors import OpError

UNITS = 5


def planes_of(seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Rows of 32, 48 and 20,480 bytes; the last one is cut."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [((UNITS, 2, 4), torch.float32), ((UNITS, 24), torch.bfloat16)]
    shapes += [((UNITS, 20480), torch.float8_e4m3fn)]
    return tuple(
        torch.randint(0, 100, shape, generator=generator).to(dtype) for shape, dtype in shapes
    )


def units_of(planes: tuple[torch.Tensor, ...]) -> UnitPlanes:
    return UnitPlanes(planes, torch.tensor(cut_image(planes), dtype=torch.int64))


def row(plane: torch.Tensor, unit: int) -> torch.Tensor:
    return plane[unit].reshape(-1).view(torch.uint8)


def test_an_image_is_cut_into_pieces_that_tile_it():
    planes = planes_of()
    assert image_bytes(planes) == 32 + 48 + 20480
    base = planes[0].data_ptr()
    second, third = (plane.data_ptr() - base for plane in planes[1:])
    assert cut_image(planes) == [
        (0, 32, 0, 32),
        (second, 48, 32, 48),
        (third, 20480, 80, PIECE_BYTES),
        (third + PIECE_BYTES, 20480, 80 + PIECE_BYTES, 20480 - PIECE_BYTES),
    ]


@pytest.mark.parametrize(
    ("planes", "said"),
    [
        ((torch.zeros(4, 3),), "rows of 12 bytes"),
        ((torch.zeros(4, 4), torch.zeros(3, 4)), "as many units"),
        ((torch.zeros(4, 8)[:, :4],), "contiguous"),
    ],
)
def test_planes_that_no_kernel_moves_are_refused(planes, said):
    with pytest.raises(OpError, match=said):
        cut_image(planes)


def test_gathered_units_lie_where_they_were_sent(ops):
    planes, size = planes_of(), 32 + 48 + 20480
    host = torch.full((3 * size + 64,), 0xA5, dtype=torch.uint8)
    before = [plane.clone() for plane in planes]
    moves = torch.tensor([[4, size + 32], [1, 0]])
    ops.gather_units(units_of(planes), moves, host)
    for unit, place in moves.tolist():
        expected = torch.cat([row(plane, unit) for plane in planes])
        assert torch.equal(host[place : place + size], expected)
    around = torch.cat([host[size : size + 32], host[2 * size + 32 :]])
    assert bool((around == 0xA5).all())
    for plane, was in zip(planes, before, strict=True):
        assert torch.equal(plane.view(torch.uint8), was.view(torch.uint8))


def test_scattered_units_are_those_that_were_gathered_and_no_others(ops):
    source, target = planes_of(1), planes_of(2)
    size = image_bytes(source)
    host = torch.zeros(2 * size, dtype=torch.uint8)
    ops.gather_units(units_of(source), torch.tensor([[0, 0], [3, size]]), host)
    before = [plane.clone() for plane in target]
    ops.scatter_units(units_of(target), torch.tensor([[2, size], [4, 0]]), host)
    came_from = {2: 3, 4: 0}
    for there, plane, was in zip(source, target, before, strict=True):
        for unit in range(UNITS):
            if unit in came_from:
                assert torch.equal(row(plane, unit), row(there, came_from[unit]))
            else:
                assert torch.equal(row(plane, unit), row(was, unit))


@pytest.mark.parametrize("move", [[UNITS, 0], [-1, 0], [0, 20560 - 16]])
def test_what_lies_outside_is_refused(ops, move):
    planes = planes_of()
    host = torch.zeros(20560, dtype=torch.uint8)
    with pytest.raises(OpError):
        ops.gather_units(units_of(planes), torch.tensor([move]), host)
