"""Images of units, byte by byte, by hand arithmetic."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.ops.contracts.transfers import Run, UnitPlanes, image_bytes, unit_planes
from ninfer_core.ops.errors import OpError

UNITS = 5


def planes_of(seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Rows of 32, 48 and 20,480 bytes."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [((UNITS, 2, 4), torch.float32), ((UNITS, 24), torch.bfloat16)]
    shapes += [((UNITS, 20480), torch.float8_e4m3fn)]
    return tuple(
        torch.randint(0, 100, shape, generator=generator).to(dtype) for shape, dtype in shapes
    )


def units_of(planes: tuple[torch.Tensor, ...]) -> UnitPlanes:
    return unit_planes(planes)


def row(plane: torch.Tensor, unit: int) -> torch.Tensor:
    return plane[unit].reshape(-1).view(torch.uint8)


def cut(buffer: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """A plane of UNITS rows of ``size`` bytes in a buffer."""
    return buffer[start : start + UNITS * size].view(UNITS, size)


def test_rows_of_one_kind_make_a_run():
    """Three layers of keys, values and scales, each plane 64 bytes behind the one before."""
    buffer = torch.zeros(8192, dtype=torch.uint8)
    planes, start = [], 0
    for _ in range(3):
        for size in (128, 128, 16, 16):
            planes.append(cut(buffer, start, size))
            start += UNITS * size + 64
    layer, image = 2 * (5 * 128 + 64) + 2 * (5 * 16 + 64), 288
    assert unit_planes(planes).runs == (
        Run(0, 0, 128, 3, layer, image),
        Run(704, 128, 128, 3, layer, image),
        Run(1408, 256, 16, 3, layer, image),
        Run(1552, 272, 16, 3, layer, image),
    )


def test_keys_and_values_alone_make_one_run():
    buffer = torch.zeros(8192, dtype=torch.uint8)
    planes = [cut(buffer, 1000 // 16 * 16 + 704 * n, 128) for n in range(6)]
    assert unit_planes(planes).runs == (Run(0, 0, 128, 6, 704, 128),)


def test_a_row_that_lies_elsewhere_begins_a_run():
    buffer = torch.zeros(8192, dtype=torch.uint8)
    starts = [0, 704, 1408, 2128, 2832, 2112 - 1408]
    runs = unit_planes([cut(buffer, start, 128) for start in starts]).runs
    assert runs == (
        Run(0, 0, 128, 3, 704, 128),
        Run(2128, 384, 128, 2, 704, 128),
        Run(704, 640, 128, 1, 128, 128),
    )


def test_no_run_leaves_an_allocation():
    """Even where the next one lies as if it belonged to it."""
    base = torch.zeros(8192, dtype=torch.uint8)
    other = torch.from_numpy(base.numpy()[1408:])
    assert other.data_ptr() == base.data_ptr() + 1408
    runs = unit_planes([cut(base, 0, 128), cut(base, 704, 128), cut(other, 0, 128)]).runs
    assert runs == (Run(0, 0, 128, 2, 704, 128), Run(1408, 256, 128, 1, 128, 128))


def test_history_and_recurrent_state_make_a_run_each_and_the_last_row_its_own():
    history, recurrent = torch.zeros(3, UNITS, 48), torch.zeros(3, UNITS, 256)
    hidden = torch.zeros(UNITS, 16)
    planes = [plane for n in range(3) for plane in (history[n], recurrent[n])] + [hidden]
    base = history.data_ptr()
    runs = unit_planes(planes).runs
    assert set(runs) == {
        Run(0, 0, 192, 3, 5 * 192, 1216),
        Run(recurrent.data_ptr() - base, 192, 1024, 3, 5 * 1024, 1216),
        Run(hidden.data_ptr() - base, 3648, 64, 1, 64, 64),
    }


@pytest.mark.parametrize(
    ("planes", "said"),
    [
        ((torch.zeros(4, 3),), "rows of 12 bytes"),
        ((torch.zeros(4, 4), torch.zeros(3, 4)), "as many units"),
        ((torch.zeros(4, 8)[:, :4],), "contiguous"),
    ],
)
def test_planes_that_no_op_moves_are_refused(planes, said):
    with pytest.raises(OpError, match=said):
        unit_planes(planes)


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
