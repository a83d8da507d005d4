"""What every device does alike, in the words of its Protocol."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.device.base import ALIGNMENT, Extent, LaneRole
from ninfer_core.device.errors import ArenaExhausted, DeviceError


@pytest.fixture
def device(each_device):
    with each_device.lane(LaneRole.COMPUTE).enter():
        yield each_device


@pytest.fixture
def compute(device):
    return device.lane(LaneRole.COMPUTE)


@pytest.fixture(params=["arena", "pinned"])
def allocate(device, request):
    return getattr(device, request.param)


def test_facts(device):
    assert device.name in ("cpu", "cuda:0")
    assert device.facts.kind == device.torch_device.type
    memory = device.memory()
    assert 0 < memory.free <= memory.total
    assert memory.total > 1 << 20
    assert device.facts.memory_bytes > 0


def test_takes_are_aligned_disjoint_and_of_their_type(device, allocate):
    arena = allocate("state", 4096)
    tensors = [
        arena.take(name, shape, dtype)
        for name, shape, dtype in [
            ("a", [3], torch.uint8),
            ("b", (2, 5), torch.bfloat16),
            ("c", (), torch.float64),
            ("d", (0, 7), torch.int32),
            ("e", (5,), torch.bool),
        ]
    ]
    assert [list(t.shape) for t in tensors] == [[3], [2, 5], [], [0, 7], [5]]
    assert [t.dtype for t in tensors] == [
        torch.uint8, torch.bfloat16, torch.float64, torch.int32, torch.bool
    ]  # fmt: skip
    assert all(t.is_contiguous() and t.data_ptr() % ALIGNMENT == 0 for t in tensors)
    assert dict(arena.layout()) == {
        "a": Extent(0, 3),
        "b": Extent(256, 20),
        "c": Extent(512, 8),
        "d": Extent(768, 0),
        "e": Extent(768, 5),
    }
    assert arena.free == 4096 - 773
    for value, tensor in zip((7, 1.5, -2, 9, True), tensors, strict=True):
        tensor.fill_(value)
    device.synchronize()
    assert [t.flatten().tolist() for t in tensors] == [[7] * 3, [1.5] * 10, [-2], [], [True] * 5]


def test_arenas_lie_on_the_device_and_pinned_pools_in_host_memory(device):
    assert device.arena("state", 256).take("x", [1], torch.int32).device == device.torch_device
    assert device.pinned("ring", 256).take("x", [1], torch.int32).device == torch.device("cpu")


def test_an_arena_can_be_filled_to_its_last_byte(allocate):
    arena = allocate("kv", 1024)
    arena.take("head", [512], torch.uint8)
    tail = arena.take("tail", [128], torch.float32)
    assert arena.free == 0
    tail.fill_(3)
    assert tail.tolist() == [3.0] * 128


def test_exhaustion_has_the_numbers(allocate):
    arena = allocate("kv", 2000)
    arena.take("layer 0", [1000], torch.uint8)
    with pytest.raises(
        ArenaExhausted, match=r"'kv' of 2,000 bytes has 976 left; 'layer 1' needs 1,000"
    ):
        arena.take("layer 1", [250], torch.float32)
    assert list(arena.layout()) == ["layer 0"]


def test_memory_that_is_not_there_is_refused_with_the_numbers(allocate):
    with pytest.raises(DeviceError, match=r"'kv' needs 1,152,921,504,606,846,976 bytes") as error:
        allocate("kv", 1 << 60)
    assert sum(word[0].isdigit() for word in str(error.value).split()) >= 2


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda device, arena: arena.take("a", [1], torch.uint8), "already has a tensor 'a'"),
        (lambda device, arena: arena.take("b", [2, -1], torch.uint8), r"negative size: \[2, -1\]"),
        (lambda device, arena: device.arena("state", 10), "already has an arena 'state'"),
        (lambda device, arena: device.pinned("state", 10), "already has an arena 'state'"),
        (lambda device, arena: device.arena("none", -1), "cannot have -1 bytes"),
        (lambda device, arena: device.pinned("none", -1), "cannot have -1 bytes"),
    ],
)
def test_misuse_is_refused(device, allocate, use, message):
    arena = allocate("state", 4096)
    arena.take("a", [1], torch.uint8)
    with pytest.raises(DeviceError, match=message):
        use(device, arena)


def test_closing_ends_everything(device, compute):
    arena = device.arena("state", 64)
    pinned = device.pinned("ring", 64)
    x = arena.take("x", [4], torch.float32)
    x.fill_(1)
    graph = device.capture(lambda: x.add_(1), compute)
    device.close()
    device.close()
    arena.close()
    graph.close()
    for use in (
        lambda: arena.take("a", [1], torch.uint8),
        lambda: pinned.take("a", [1], torch.uint8),
        graph.replay,
        lambda: device.arena("more", 64),
        lambda: device.pinned("more", 64),
        lambda: device.capture(lambda: None, compute),
        lambda: device.upload(torch.zeros(4), x, compute),
        lambda: device.reserve_workspace(64),
    ):
        with pytest.raises(DeviceError, match="closed"):
            use()


def test_a_graph_runs_when_replayed_on_what_lies_there_then(device, compute):
    x, y = (device.arena(name, 64).take("x", [4], torch.float32) for name in ("in", "out"))
    x.fill_(9)
    torch.mul(x, 2, out=y)
    y.fill_(-1)
    graph = device.capture(lambda: torch.mul(x, 2, out=y), compute)
    assert y.tolist() == [-1] * 4
    for value in (3.0, 5.0):
        x.fill_(value)
        graph.replay()
        compute.synchronize()
        assert y.tolist() == [2 * value] * 4


def test_lanes_are_kept_and_ordered_by_events(device, compute):
    lanes = {role: device.lane(role) for role in LaneRole}
    assert all(device.lane(role) is lane and lane.role is role for role, lane in lanes.items())
    event = compute.record()
    lanes[LaneRole.COPY_OUT].wait_for(event)
    event.wait()
    assert event.done()
    device.synchronize()
    assert all(lane.query() for lane in lanes.values())


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (33, 65)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("pinned", [False, True])
def test_uploads_arrive(device, compute, shape, dtype, pinned):
    generator = torch.Generator().manual_seed(3)
    source = torch.randint(0, 2, shape, generator=generator).to(dtype)
    if pinned:
        source = device.pinned("in", 32 << 10).take("x", shape, dtype).copy_(source)
    target = device.arena("state", 32 << 10).take("x", shape, dtype)
    target.fill_(0)
    device.upload(source, target, compute)
    compute.synchronize()
    assert torch.equal(target.cpu(), source)


def test_uploads_that_do_not_fit_are_refused(device, compute):
    target = device.arena("state", 4096).take("x", [4, 6], torch.float32)
    for source, message in [
        (torch.zeros(4, 5), r"float32\[4, 5\] does not fill float32\[4, 6\]"),
        (torch.zeros(4, 6, dtype=torch.int32), r"int32\[4, 6\] does not fill float32"),
        (torch.zeros(6, 4).T, "the source is not contiguous"),
        (torch.zeros(4, 6, device="meta"), "the source lies on meta, not in host memory"),
    ]:
        with pytest.raises(DeviceError, match=message):
            device.upload(source, target, compute)
    with pytest.raises(DeviceError, match="the target is not contiguous"):
        device.upload(torch.zeros(4, 3), target[:, :3], compute)
    with pytest.raises(DeviceError, match=r"the target lies on meta, not on c"):
        device.upload(torch.zeros(4), torch.zeros(4, device="meta"), compute)


def test_counters_show_every_creation(device, compute):
    before = device.counters()
    arena = device.arena("state", 1024)
    x = arena.take("a", [1], torch.uint8)
    arena.take("b", [1], torch.uint8)
    device.pinned("ring", 1024).take("a", [1], torch.uint8)
    x.fill_(0)
    x.add_(1)
    graph = device.capture(lambda: x.add_(1), compute)
    after = device.counters()
    assert (after.arenas, after.takes, after.graphs) == (
        before.arenas + 2,
        before.takes + 3,
        before.graphs + 1,
    )
    graph.replay()
    device.upload(torch.zeros(1, dtype=torch.uint8), x, compute)
    device.synchronize()
    assert device.counters() == after
