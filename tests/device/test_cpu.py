"""The CPU device: arenas, graphs, lanes, and their refusals."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.device.base import ALIGNMENT, Extent, LaneRole
from ninfer_core.device.cpu import open_device
from ninfer_core.device.errors import ArenaExhausted, DeviceError


@pytest.fixture
def device():
    opened = open_device()
    yield opened
    opened.close()


def test_facts(device):
    assert device.name == "cpu"
    assert device.torch_device == torch.device("cpu")
    assert device.facts.kind == "cpu"
    assert device.facts.compute_capability is None
    memory = device.memory()
    assert 0 < memory.free <= memory.total == device.facts.memory_bytes


def test_there_is_one_cpu():
    with pytest.raises(DeviceError, match="cpu:1"):
        open_device(1)


def test_takes_are_aligned_disjoint_and_of_their_type(device):
    arena = device.arena("state", 4096)
    first = arena.take("a", [3], torch.uint8)
    second = arena.take("b", (2, 5), torch.bfloat16)
    third = arena.take("c", (), torch.float64)
    empty = arena.take("d", (0, 7), torch.int32)
    assert (first.shape, second.shape, third.shape, empty.shape) == ((3,), (2, 5), (), (0, 7))
    assert (second.dtype, third.dtype, empty.dtype) == (
        torch.bfloat16,
        torch.float64,
        torch.int32,
    )
    tensors = (first, second, third)
    assert all(t.data_ptr() % ALIGNMENT == 0 and t.is_contiguous() for t in tensors)
    assert dict(arena.layout()) == {
        "a": Extent(0, 3),
        "b": Extent(256, 20),
        "c": Extent(512, 8),
        "d": Extent(768, 0),
    }
    assert arena.free == 4096 - 768
    first.fill_(7), second.fill_(1.5), third.fill_(-2)
    assert first.tolist() == [7] * 3
    assert second.flatten().tolist() == [1.5] * 10
    assert third.item() == -2


def test_an_arena_can_be_filled_to_its_last_byte(device):
    arena = device.arena("kv", 1024)
    arena.take("head", [512], torch.uint8)
    arena.take("tail", [128], torch.float32)
    assert arena.free == 0


def test_exhaustion_has_the_numbers(device):
    arena = device.arena("kv", 2000)
    arena.take("layer 0", [1000], torch.uint8)
    with pytest.raises(
        ArenaExhausted, match=r"'kv' of 2,000 bytes has 976 left; 'layer 1' needs 1,000"
    ):
        arena.take("layer 1", [250], torch.float32)
    assert list(arena.layout()) == ["layer 0"]
    arena.take("rest", [976], torch.uint8)


def test_a_block_that_cannot_exist_names_its_bytes(device):
    with pytest.raises(DeviceError, match=r"'kv' needs .* bytes; .* are available"):
        device.arena("kv", 1 << 60)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda device, arena: arena.take("a", [1], torch.uint8), "already has a tensor 'a'"),
        (lambda device, arena: arena.take("b", [2, -1], torch.uint8), r"negative size: \[2, -1\]"),
        (lambda device, arena: device.arena("state", 10), "already has an arena 'state'"),
        (lambda device, arena: device.pinned("state", 10), "already has an arena 'state'"),
        (lambda device, arena: device.arena("none", -1), "cannot have -1 bytes"),
    ],
)
def test_misuse_is_refused(device, use, message):
    arena = device.arena("state", 4096)
    arena.take("a", [1], torch.uint8)
    with pytest.raises(DeviceError, match=message):
        use(device, arena)


def test_closing_ends_everything(device):
    arena = device.arena("state", 64)
    graph = device.capture(lambda: None, device.lane(LaneRole.COMPUTE))
    device.close()
    device.close()
    for use in (
        lambda: arena.take("a", [1], torch.uint8),
        graph.replay,
        lambda: device.arena("more", 64),
        lambda: device.capture(lambda: None, device.lane(LaneRole.COMPUTE)),
    ):
        with pytest.raises(DeviceError, match="closed"):
            use()


def test_a_graph_runs_when_replayed_on_what_lies_there_then(device):
    x, y = (device.arena(name, 64).take("x", [4], torch.float32) for name in ("in", "out"))
    graph = device.capture(lambda: torch.mul(x, 2, out=y), device.lane(LaneRole.COMPUTE))
    y.fill_(-1)
    assert y.tolist() == [-1] * 4
    for value in (3.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [2 * value] * 4


def test_lanes_are_kept_and_always_empty(device):
    lane = device.lane(LaneRole.COPY_IN)
    assert lane is device.lane(LaneRole.COPY_IN)
    assert lane.role is LaneRole.COPY_IN
    with lane.enter():
        event = lane.record()
    assert event.done()
    event.wait()
    device.lane(LaneRole.COMPUTE).wait_for(event)
    lane.synchronize()
    device.synchronize()


def test_counters_show_every_creation(device):
    before = device.counters()
    arena = device.arena("state", 1024)
    arena.take("a", [1], torch.uint8), arena.take("b", [1], torch.uint8)
    graph = device.capture(lambda: None, device.lane(LaneRole.COMPUTE))
    after = device.counters()
    assert (after.arenas, after.takes, after.graphs) == (
        before.arenas + 1,
        before.takes + 2,
        before.graphs + 1,
    )
    graph.replay()
    assert device.counters() == after
