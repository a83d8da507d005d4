"""Units moved by copy engines are those that the reference moves, to the byte."""

from __future__ import annotations

import pytest
import torch
from harness import Guarded

from ninfer_core.ops.contracts.transfers import image_bytes, unit_planes
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference import OPS as REFERENCE

pytest.importorskip("triton")

from ninfer_ops_triton import transfers

UNITS, HEADS, HEAD = 6, 2, 32
FORMATS = {"fp32": 0, "bf16": 0, "int8": HEAD // 32, "fp8": 1}
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


class Pool:
    """Random planes inside guard bytes, and host memory of some images, full of a pattern."""

    def __init__(self, device: torch.device, shapes, images: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.guards = [Guarded(shape, dtype, device) for shape, dtype in shapes]
        for guard in self.guards:
            flat = guard.tensor.view(-1).view(torch.uint8)
            flat.copy_(torch.randint(256, flat.shape, generator=generator, dtype=torch.uint8))
        self.planes = tuple(guard.tensor for guard in self.guards)
        self.units = unit_planes(self.planes)
        self.size = image_bytes(self.planes)
        self.host = self.pinned(torch.full((images * self.size + 256,), 0xA5, dtype=torch.uint8))

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory() if self.planes[0].is_cuda else tensor

    def moves(self, *rows: tuple[int, int]) -> torch.Tensor:
        return self.pinned(torch.tensor(rows, dtype=torch.int64).view(-1, 2))

    def bytes(self) -> list[torch.Tensor]:
        """All planes on the host, with every guard intact."""
        for guard in self.guards:
            guard.check()
        return [plane.cpu().view(-1).view(torch.uint8).clone() for plane in self.planes]


def page_shapes(kv_format: str, layers: int = 2):
    shapes = []
    for _ in range(layers):
        shapes += [((UNITS, 64, HEADS, HEAD), DTYPES[kv_format])] * 2
        if FORMATS[kv_format]:
            shapes += [((UNITS, 64, HEADS, FORMATS[kv_format]), torch.float32)] * 2
    return shapes


def slot_shapes(layers: int = 3):
    return [
        shape
        for _ in range(layers)
        for shape in (
            ((UNITS, 3, 192), torch.bfloat16),
            ((UNITS, 4, 64, 32), torch.float32),
        )
    ]


POOLS = {name: page_shapes(name) for name in FORMATS} | {"slots": slot_shapes()}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


@pytest.mark.parametrize("shapes", POOLS.values(), ids=POOLS)
def test_images_are_those_of_the_reference(device, shapes) -> None:
    here, there = Pool(device, shapes, 3), Pool(torch.device("cpu"), shapes, 3)
    size = here.size
    rows = ((4, 2 * size + 16), (0, 0), (5, size + 16))
    before = here.bytes()
    transfers.gather_units(here.units, here.moves(*rows), here.host)
    wait(device)
    REFERENCE.gather_units(there.units, there.moves(*rows), there.host)
    assert torch.equal(here.host, there.host)
    for was, now in zip(before, here.bytes(), strict=True):
        assert torch.equal(was, now)


@pytest.mark.parametrize("shapes", POOLS.values(), ids=POOLS)
def test_scattered_units_are_those_of_the_reference(device, shapes) -> None:
    here = Pool(device, shapes, 3, seed=1)
    there = Pool(torch.device("cpu"), shapes, 3, seed=1)
    generator = torch.Generator().manual_seed(9)
    given = torch.randint(256, here.host.shape, generator=generator, dtype=torch.uint8)
    here.host.copy_(given)
    rows = ((3, here.size + 32), (1, 0))
    transfers.scatter_units(here.units, here.moves(*rows), here.host)
    wait(device)
    REFERENCE.scatter_units(there.units, there.moves(*rows), given)
    assert torch.equal(here.host, given)
    for mine, theirs in zip(here.bytes(), there.bytes(), strict=True):
        assert torch.equal(mine, theirs)


def test_no_move_moves_nothing(device) -> None:
    pool = Pool(device, slot_shapes(1), 1)
    before = pool.bytes()
    for op in (transfers.gather_units, transfers.scatter_units):
        op(pool.units, pool.moves(), pool.host)
    wait(device)
    assert bool((pool.host == 0xA5).all())
    assert all(torch.equal(was, now) for was, now in zip(before, pool.bytes(), strict=True))


def test_operands_that_do_not_fit_are_named(device) -> None:
    pool = Pool(device, slot_shapes(1), 1)
    moves = pool.moves((0, 0))
    with pytest.raises(OpError, match="moves"):
        transfers.gather_units(pool.units, moves.int(), pool.host)
    with pytest.raises(OpError, match="moves"):
        transfers.gather_units(pool.units, moves[0], pool.host)
    with pytest.raises(OpError, match="host"):
        transfers.gather_units(pool.units, moves, pool.host[8:])
    with pytest.raises(OpError, match="host"):
        transfers.gather_units(pool.units, moves, pool.host.view(torch.int32))
    for move, said in (
        ((UNITS, 0), f"unit {UNITS} of a pool of {UNITS}"),
        ((-1, 0), "unit -1 of"),
        ((0, 8), "an image at 8 "),
        ((0, -16), "an image at -16 "),
        ((0, 272), "an image at 272 "),
    ):
        with pytest.raises(OpError, match=said):
            transfers.gather_units(pool.units, pool.moves((0, 0), move), pool.host)
