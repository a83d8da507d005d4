"""Graphs of the CUDA device: captured once, replayed on what lies there, creating nothing."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.device.base import LaneRole
from ninfer_core.device.errors import DeviceError

pytestmark = pytest.mark.gpu

MIB = 1 << 20


def a_round(x, w, y):
    """Some work with intermediate tensors, as a round has."""
    hidden = torch.relu(x @ w)
    torch.softmax(hidden.float(), -1, out=y)


@pytest.fixture
def tensors(device, compute):
    arena = device.arena("state", 4 * MIB)
    x = arena.take("x", [8, 256], torch.bfloat16)
    w = arena.take("w", [256, 512], torch.bfloat16)
    y = arena.take("y", [8, 512], torch.float32)
    torch.manual_seed(4)
    x.normal_()
    w.normal_(std=0.1)
    a_round(x, w, y)
    return x, w, y


def test_a_replay_equals_the_same_work_done_eagerly(device, compute, tensors):
    from ninfer_core.device.cuda.graphs import DRIVER_LAUNCH

    x, w, y = tensors
    y.fill_(-1)
    graph = device.capture(lambda: a_round(x, w, y), compute)
    assert graph.launch_path == DRIVER_LAUNCH
    assert (y == -1).all()
    for seed in range(5):
        torch.manual_seed(seed)
        x.normal_()
        y.fill_(-1)
        graph.replay()
        replayed = y.clone()
        a_round(x, w, y)
        assert torch.equal(replayed, y)
        assert not torch.equal(replayed, torch.full_like(y, -1))


def test_graphs_of_one_device_share_their_memory(device, compute, tensors):
    x, w, y = tensors
    first = device.capture(lambda: a_round(x, w, y), compute)
    reserved = torch.cuda.memory_reserved()
    others = [device.capture(lambda: a_round(x, w, y), compute) for _ in range(20)]
    assert torch.cuda.memory_reserved() - reserved <= 2 * MIB
    x.fill_(0.5)
    outputs = []
    for graph in (first, *others):
        y.fill_(-1)
        graph.replay()
        outputs.append(y.clone())
    assert all(torch.equal(outputs[0], output) for output in outputs)


def test_replays_create_nothing(device, compute, tensors):
    x, w, y = tensors
    graph = device.capture(lambda: a_round(x, w, y), compute)
    graph.replay()
    compute.synchronize()
    before, of_torch = device.counters(), torch.cuda.memory_stats()

    def memory_stays():
        free = device.memory().free
        for _ in range(200):
            graph.replay()
        compute.synchronize()
        return device.memory().free == free

    # Other processes may take and free memory of the same GPU: one stretch without them is enough.
    assert any(memory_stays() for _ in range(50))
    assert device.counters() == before
    assert torch.cuda.memory_stats() == of_torch


def test_other_ways_of_launching_a_graph_do_the_same(device, compute, tensors, monkeypatch):
    from ninfer_core.device.cuda import graphs

    x, w, y = tensors
    monkeypatch.setattr(graphs, "offers_executable", lambda graph: False)
    graph = device.capture(lambda: a_round(x, w, y), compute)
    assert graph.launch_path == graphs.TORCH_REPLAY
    expected = y.clone()
    y.fill_(-1)
    graph.replay()
    assert torch.equal(y, expected)


def test_what_a_body_raises_passes_through_and_harms_nothing(device, compute, tensors):
    x, w, y = tensors

    def broken():
        a_round(x, w, y)
        raise KeyError("mine")

    expected = y.clone()
    with pytest.raises(KeyError, match="mine"):
        device.capture(broken, compute)
    graph = device.capture(lambda: a_round(x, w, y), compute)
    y.fill_(-1)
    graph.replay()
    assert torch.equal(y, expected)
    assert device.counters().graphs == 1


def test_graphs_can_be_captured_after_all_are_closed(device, compute, tensors):
    x, w, y = tensors
    expected = y.clone()
    for _ in range(2):
        graphs = [device.capture(lambda: a_round(x, w, y), compute) for _ in range(2)]
        y.fill_(-1)
        graphs[1].replay()
        assert torch.equal(y, expected)
        for graph in graphs:
            graph.close()
    with pytest.raises(DeviceError, match="closed graph"):
        graphs[0].replay()


def test_a_lane_of_another_device_is_refused(device):
    from ninfer_core.device.cpu import CpuLane

    with pytest.raises(DeviceError, match="not one of cuda:0"):
        device.capture(lambda: None, CpuLane(LaneRole.COMPUTE))


def test_a_reserved_workspace_serves_later_tensors(device, compute, tensors):
    x, w, y = tensors
    device.reserve_workspace(512 * MIB)
    device.capture(lambda: a_round(x, w, y), compute)
    before = device.counters().allocations
    assert before > 0
    for size in (100, 3000, 70_000, MIB, 3 * MIB, 25 * MIB, 400 * MIB):
        held = [torch.empty(size, dtype=torch.uint8, device=device.torch_device)]
        held.append(torch.zeros(64, device=device.torch_device))
        del held
    held = [torch.empty(s, dtype=torch.uint8, device=device.torch_device) for s in
            (100, 5000, MIB, 7 * MIB, 90 * MIB, 300 * MIB)]  # fmt: skip
    assert device.counters().allocations == before
    too_much = torch.empty(600 * MIB, dtype=torch.uint8, device=device.torch_device)
    assert device.counters().allocations > before
    del held, too_much
