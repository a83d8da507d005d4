"""What only the CPU device says of itself."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.device.base import LaneRole
from ninfer_core.device.cpu import open_device
from ninfer_core.device.errors import DeviceError


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
    assert device.memory().total == device.facts.memory_bytes


def test_there_is_one_cpu():
    with pytest.raises(DeviceError, match="cpu:1"):
        open_device(1)


def test_work_is_done_when_it_is_enqueued(device):
    lane = device.lane(LaneRole.COPY_IN)
    with lane.enter():
        event = lane.record()
    assert event.done()
    assert lane.query()


def test_its_tensor_library_asks_no_device_for_memory(device):
    device.reserve_workspace(1 << 40)
    torch.empty(1 << 16)
    assert device.counters().allocations == 0
