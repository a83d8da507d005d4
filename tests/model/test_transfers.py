"""State images and pages on their way to the host and back."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.artifact import open_artifact
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.device.base import LaneRole
from ninfer_core.device.cpu import open_device
from ninfer_core.device.errors import DeviceError, DeviceLost
from ninfer_core.ops.contracts.transfers import image_bytes
from ninfer_core.ops.reference import OPS
from ninfer_core.store.host_arena import HostArena
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.program import transfers as module
from ninfer_qwen3_5.program.layout import Layout, Numerics, StateBuilder, state_sizes
from ninfer_qwen3_5.program.transfers import PARTS, Transfers, page_planes, slot_planes
from tests.model.conftest import SHAPES
from tests.model.late_copies import LateCopies

LAYOUT = Layout(pages=9, pages_per_sequence=4, slots=5, rows=2)
FORMATS = {"fp32": "float32", "bf16": "bfloat16", "int8": "bfloat16", "fp8": "bfloat16"}


@pytest.fixture(scope="session")
def config_of(build_case):
    def config(name: str) -> TextConfig:
        with open_artifact(build_case(name).path) as artifact:
            return TextConfig.from_json(artifact.component("text").config)

    return config


class World:
    """A model's state full of random bytes, an arena beside it, and the transfers between them."""

    def __init__(self, config, kv_format="fp32", device=None, images=8, most=4) -> None:
        self.device = device or open_device()
        self.numerics = Numerics(FORMATS[kv_format], kv_format)
        builder = StateBuilder(config, LAYOUT, self.device, self.numerics)
        self.state, _ = builder.build()
        generator = torch.Generator().manual_seed(3)
        for plane in (*page_planes(self.state), *slot_planes(self.state)):
            flat = plane.view(-1).view(torch.uint8)
            flat.copy_(torch.randint(256, flat.shape, generator=generator, dtype=torch.uint8))
        sizes = state_sizes(config, self.numerics)
        self.arena = HostArena("host_bytes", images * (sizes.slot + sizes.page))
        host = self.device.pinned("host_tier", self.arena.capacity)
        self.host = host.take("images", (self.arena.capacity,), torch.uint8).fill_(0xA5)
        ops = self.device.ops(OPS) if isinstance(self.device, LateCopies) else OPS
        self.transfers = Transfers(ops, self.state, self.device, self.host, most)

    def extents(self, pages: int, state: bool = True):
        sizes = [self.transfers.slot_bytes] * state + [self.transfers.page_bytes] * pages
        return [self.arena.allocate(size) for size in sizes]

    def slot(self, index: int) -> list[torch.Tensor]:
        return [plane[index].clone() for plane in slot_planes(self.state)]

    def page(self, index: int) -> list[torch.Tensor]:
        return [plane[index].clone() for plane in page_planes(self.state)]

    def image(self, extent, size: int) -> torch.Tensor:
        return self.host[extent.offset : extent.offset + size]

    def clear(self) -> None:
        for plane in (*page_planes(self.state), *slot_planes(self.state)):
            plane.zero_()


def flat(planes: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([plane.reshape(-1).view(torch.uint8) for plane in planes])


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_images_have_the_sizes_of_the_layout(config_of, name, kv_format) -> None:
    config = config_of(name)
    if kv_format == "int8" and config.head_dim % 64:
        pytest.skip("no whole group of 64 elements in a head")
    numerics = Numerics(FORMATS[kv_format], kv_format)
    state, _ = StateBuilder(config, LAYOUT, open_device(), numerics).build()
    sizes = state_sizes(config, numerics)
    assert image_bytes(page_planes(state)) == sizes.page
    assert image_bytes(slot_planes(state)) == sizes.slot


@pytest.mark.parametrize("kv_format", ["fp32", "int8", "fp8"])
@pytest.mark.parametrize("late", [False, True])
def test_what_was_saved_comes_back_elsewhere(config_of, kv_format, late) -> None:
    world = World(config_of("large_head"), kv_format, LateCopies() if late else None)
    slot, pages = world.slot(1), [world.page(index) for index in (7, 0, 3)]
    extents = world.extents(3)
    saved = world.transfers.save(1, (7, 0, 3), extents)
    assert saved.done() is not late
    saved.wait()
    assert (saved.done(), saved.failure) == (True, None)
    assert saved.bytes == world.transfers.slot_bytes + 3 * world.transfers.page_bytes
    world.clear()
    loaded = world.transfers.load(4, (2, 8, 5), extents)
    loaded.hold_back(world.device.lane(LaneRole.COMPUTE))
    assert same(world.slot(4), slot)
    for index, page in zip((2, 8, 5), pages, strict=True):
        assert same(world.page(index), page)
    for index in (0, 1, 2, 3, 5):
        assert not any(plane.view(torch.uint8).any() for plane in world.slot(index))
    for index in (0, 1, 3, 4, 6, 7):
        assert not any(plane.view(torch.uint8).any() for plane in world.page(index))
    world.arena.check()


def test_pages_move_without_a_state_and_a_state_without_pages(config_of) -> None:
    world = World(config_of("tied"))
    page, slot = world.page(6), world.slot(2)
    (place,), (image,) = world.extents(1, state=False), world.extents(0)
    for transfer in (
        world.transfers.save(None, [6], [place]),
        world.transfers.save(2, [], [image]),
        world.transfers.load(None, [1], [place]),
        world.transfers.load(3, [], [image]),
    ):
        assert transfer.done()
    assert same(world.page(1), page)
    assert same(world.slot(3), slot)


def test_bytes_beside_the_extents_stay(config_of) -> None:
    world = World(config_of("tied"))
    image, *pages = world.extents(4)
    world.transfers.save(0, (1, 2), [image, *pages[1:3]])
    for extent in (pages[0], pages[3]):
        written = world.host[extent.offset : extent.offset + extent.size]
        assert bool((written == 0xA5).all())


def test_a_long_transfer_is_enqueued_in_parts_while_it_is_asked_for(config_of, monkeypatch) -> None:
    monkeypatch.setattr(module, "PART_PAGES", 1)
    world = World(config_of("tied"), device=LateCopies(lag=0), images=20, most=LAYOUT.pages)
    lane, pages = world.device.copies[LaneRole.COPY_OUT], range(LAYOUT.pages)
    extents = world.extents(len(pages))
    saved = world.transfers.save(1, pages, extents)
    for asked in range(1, 2 * PARTS):
        assert len(lane.waiting) == 1 + min(asked, PARTS)
        assert not saved.done()
    while not saved.done():
        lane.run_one()
    assert not lane.waiting
    image, *rest = extents
    assert torch.equal(world.image(image, world.transfers.slot_bytes), flat(world.slot(1)))
    for page, extent in zip(pages, rest, strict=True):
        assert torch.equal(world.image(extent, world.transfers.page_bytes), flat(world.page(page)))


@pytest.mark.parametrize(
    ("kv_format", "state", "expected"),
    [
        ("bf16", True, [(1, 4), (0, 12), (0, 4)]),
        ("bf16", False, [(0, 12), (0, 8)]),
        ("int8", True, [(1, 4), (0, 6), (0, 6), (0, 4)]),
    ],
)
def test_a_part_has_so_many_pages_and_copies_at_most(
    config_of, monkeypatch, kv_format, state, expected
) -> None:
    """A page of int8 is two copies here, keys with values and the scales of both. The first part
    beside a state is short."""
    monkeypatch.setattr(module, "PART_PAGES", 12)
    monkeypatch.setattr(module, "PART_COPIES", 12)
    monkeypatch.setattr(module, "FIRST_PAGES", 4)
    world = World(config_of("large_head"), kv_format, images=30, most=20)
    assert len(world.transfers._pages.runs) == (2 if kv_format == "int8" else 1)
    parts = []
    monkeypatch.setattr(
        world.transfers,
        "_enqueue",
        lambda way, slots, pages: parts.append((len(slots), len(pages))),
    )
    extents = world.extents(20, state=state)
    moved = world.transfers.save(1 if state else None, [k % 9 for k in range(20)], extents)
    moved.wait()
    assert parts == expected


@pytest.mark.parametrize("wait", ["wait", "hold_back"])
def test_whoever_waits_waits_for_all_parts(config_of, monkeypatch, wait) -> None:
    monkeypatch.setattr(module, "PART_PAGES", 1)
    world = World(config_of("tied"), device=LateCopies(lag=0), images=20, most=LAYOUT.pages)
    extents, expected = world.extents(7), [world.page(index) for index in range(7)]
    world.transfers.save(1, range(7), extents).wait()
    world.clear()
    loaded = world.transfers.load(1, range(7), extents)
    if wait == "wait":
        loaded.wait()
    else:
        loaded.hold_back(world.device.copies[LaneRole.COPY_OUT])
    assert all(same(world.page(index), page) for index, page in enumerate(expected))


def test_a_part_that_fails_is_the_last(config_of, monkeypatch) -> None:
    monkeypatch.setattr(module, "PART_PAGES", 1)
    world = World(config_of("tied"), device=LateCopies(lag=1), images=20, most=LAYOUT.pages)
    seen = []

    def fault(at: str) -> None:
        seen.append(at)
        if len(seen) == 3:
            raise DeviceError("no third")

    world.transfers.faults = fault
    saved = world.transfers.save(None, range(6), world.extents(6, state=False))
    while not saved.done():
        pass
    assert (str(saved.failure), seen) == ("no third", ["pages"] * 3 + ["landed"])
    assert world.device.copies[LaneRole.COPY_OUT].run == 2


@pytest.mark.parametrize("step", ["state", "pages", "landed"])
def test_a_fault_fails_the_transfer_once_it_has_passed(config_of, step) -> None:
    world = World(config_of("tied"), device=LateCopies(lag=1))
    extents = world.extents(1)

    def fault(at: str) -> None:
        if at == step:
            raise DeviceError(f"no {at}")

    world.transfers.faults = fault
    transfer = world.transfers.save(0, [0], extents)
    while not transfer.done():
        pass
    assert str(transfer.failure) == f"no {step}"
    assert not world.device.copies[LaneRole.COPY_OUT].waiting


def test_a_lost_device_is_no_failed_transfer(config_of) -> None:
    world = World(config_of("tied"))

    def lose(step: str) -> None:
        raise DeviceLost("gone")

    world.transfers.faults = lose
    with pytest.raises(DeviceLost):
        world.transfers.save(0, [], world.extents(0))


def test_what_does_not_fit_together_is_refused(config_of) -> None:
    world = World(config_of("tied"))
    extents = world.extents(5)
    with pytest.raises(EngineFailure, match="5 pages in one transfer; 4"):
        world.transfers.save(0, range(5), extents)
    with pytest.raises(EngineFailure, match="6 host extents for 2 images"):
        world.transfers.save(0, [0], extents)
    short, long = sorted(extents[:2], key=lambda extent: extent.size)
    assert short.size < long.size
    wrong = [short, long] if extents[0] is long else [long, short]
    with pytest.raises(EngineFailure, match="too short"):
        world.transfers.load(0, [0], wrong)


def test_transfers_allocate_nothing(config_of) -> None:
    world = World(config_of("tied"))
    extents = world.extents(2)
    before = world.device.counters()
    for _ in range(4):
        world.transfers.save(0, (1, 2), extents)
        world.transfers.load(1, (3, 4), extents)
    assert world.device.counters() == before


@pytest.mark.parametrize("way", ["save", "load"])
def test_copies_come_after_what_the_compute_lane_was_given(config_of, way) -> None:
    world, order = World(config_of("tied")), []

    class Compute:
        def record(self) -> str:
            order.append("mark")
            return "mark"

    class Copies:
        def wait_for(self, event: str) -> None:
            order.append(f"wait for {event}")

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    direction = world.transfers._out if way == "save" else world.transfers._in
    real, direction.lane, world.transfers.compute = direction.lane, Copies(), Compute()
    world.transfers.faults = order.append
    getattr(world.transfers, way)(0, [1], world.extents(1))
    assert order == ["mark", "wait for mark", "state", "pages"]
