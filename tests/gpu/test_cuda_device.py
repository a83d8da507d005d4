"""The CUDA device: its libraries see one stream and one memory, and steady work creates nothing."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest
import torch

from ninfer_core.device.base import LaneRole
from ninfer_core.device.driver import LIBRARY
from ninfer_core.device.errors import DeviceError
from ninfer_core.device.flags import Flag

pytestmark = pytest.mark.gpu

MIB = 1 << 20
GIB = 1 << 30

STORE = r"""
extern "C" __global__ void store(int* word, int value) {
    *(volatile int*) word = value;
    __threadfence_system();
}
"""


@pytest.fixture
def store(compute):
    """Store an int32 at an address, from a kernel."""
    import cupy
    import numpy as np

    kernel = cupy.RawKernel(STORE, "store")

    def launch(address, value):
        kernel((1,), (1,), (np.uint64(address), np.int32(value)))

    return launch


def delay():
    """Keep the current stream busy for some tens of milliseconds."""
    torch.cuda._sleep(50_000_000)


def current_handles():
    import cupy

    return (torch.cuda.current_stream().cuda_stream, cupy.cuda.get_current_stream().ptr)


def allocation(address):
    """(start, size) of the device allocation of this process around ``address``, if there is one.

    Free memory is shared with every other process on the GPU; this is not.
    """
    start, size = ctypes.c_uint64(), ctypes.c_size_t()
    arguments = (ctypes.byref(start), ctypes.byref(size), ctypes.c_uint64(address))
    found = ctypes.CDLL(LIBRARY).cuMemGetAddressRange_v2(*arguments) == 0
    return (start.value, size.value) if found else None


def test_it_is_described(device):
    properties = torch.cuda.get_device_properties(0)
    assert (device.name, device.torch_device) == ("cuda:0", torch.device("cuda", 0))
    assert device.facts.kind == "cuda"
    assert device.facts.model == properties.name
    assert device.facts.compute_capability == (properties.major, properties.minor)
    assert device.facts.memory_bytes == device.memory().total == properties.total_memory


def test_torch_and_cupy_work_on_the_lane_that_was_entered(device):
    lanes = [device.lane(role) for role in LaneRole]
    assert len({lane.handle for lane in lanes}) == 3
    assert all(lane.handle for lane in lanes)
    outside = current_handles()
    for lane in lanes:
        with lane.enter():
            assert current_handles() == (lane.handle, lane.handle)
    assert current_handles() == outside


def test_a_lane_is_entered_by_one_thread_for_itself(device):
    lane = device.lane(LaneRole.COMPUTE)
    x = device.arena("state", 64).take("x", [4], torch.float32)
    seen = []

    def work():
        seen.append(current_handles())
        with lane.enter():
            seen.append(current_handles())
            x.fill_(3)
            graph = device.capture(lambda: x.add_(1), lane)
            graph.replay()
            lane.synchronize()

    outside = current_handles()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(0, 0), (lane.handle, lane.handle)]
    assert current_handles() == outside
    assert x.tolist() == [4.0] * 4


def test_lanes_wait_for_each_other_and_not_for_the_host(device):
    first, second = device.lane(LaneRole.COMPUTE), device.lane(LaneRole.COPY_OUT)
    x = device.arena("state", 64).take("x", [4], torch.int32)
    out = device.pinned("out", 64).take("x", [4], torch.int32)
    out.fill_(-1)
    with first.enter():
        x.fill_(0)
        first.synchronize()
        delay()
        x.fill_(5)
        event = first.record()
    assert not event.done()
    assert not first.query()
    second.wait_for(event)
    with second.enter():
        out.copy_(x, non_blocking=True)
    second.synchronize()
    assert event.done()
    assert out.tolist() == [5] * 4


def test_an_arena_is_a_block_of_its_own_beside_torch_s_memory(device, compute):
    import cupy

    of_torch = torch.cuda.memory_stats()
    arena = device.arena("weights", GIB)
    assert torch.cuda.memory_stats() == of_torch
    first = arena.take("a", [100], torch.bfloat16)
    second = arena.take("b", [100], torch.float32)
    address = first.data_ptr()
    start, size = allocation(address)
    assert start <= address < start + 256
    assert GIB <= size <= GIB + 2 * MIB
    assert second.data_ptr() - address == 256
    first.fill_(1.5)
    second.zero_()
    cupy.from_dlpack(second)[1::2] = 7
    assert second.tolist() == [0, 7] * 50
    assert first.tolist() == [1.5] * 100
    del first, second
    assert allocation(address)
    arena.close()
    assert allocation(address) is None


def test_an_arena_beyond_32_bits(device, compute):
    size = 54 * GIB
    if device.memory().free < size + GIB:
        pytest.skip("needs 55 GiB of free GPU memory")
    arena = device.arena("weights", size)
    head = arena.take("head", [5 * GIB], torch.uint8)
    tail = arena.take("tail", [(size - 5 * GIB) // 2], torch.bfloat16)
    assert arena.free == 0
    assert tail.data_ptr() - head.data_ptr() == 5 * GIB
    head[-1], tail[0], tail[-1] = 3, 1.5, -2.5
    assert (head[-1].item(), tail[0].item(), tail[-1].item()) == (3, 1.5, -2.5)


def test_kernels_write_pinned_memory_where_the_host_reads_it(device, compute, store):
    for capacity in (4096, 3 * MIB + 5, 200 * MIB):
        pool = device.pinned(f"ring {capacity}", capacity)
        words = pool.take("words", [capacity // 4 - 1], torch.int32)
        words.fill_(-1)
        assert words.is_pinned()
        assert words.device.type == "cpu"
        store(words[-1].data_ptr(), 42)
        compute.synchronize()
        assert (words[-1].item(), words[0].item()) == (42, -1)
        copied = words[-64:].to(device.torch_device, non_blocking=True)
        assert copied.tolist() == [-1] * 63 + [42]


def test_pinned_pools_are_given_back(device):
    pool = device.pinned("ring", MIB)
    words = pool.take("words", [16], torch.int32)
    words.fill_(3)
    pool.close()
    assert not words.is_pinned()
    assert words.tolist() == [3] * 16


def test_a_flag_is_awaited_without_a_call_into_the_driver(device, compute, store):
    word = device.pinned("flags", 64).take("done", [1], torch.int32)
    word.zero_()
    flag = Flag(word)
    store(word.data_ptr(), 1)
    flag.wait(1, 0.0, check=compute.query, what="round 1", deadline_seconds=10)
    start = time.perf_counter()
    delay()
    compute.synchronize()
    busy = time.perf_counter() - start
    for value, expected in ((2, 0.0), (3, busy), (4, 3 * busy)):
        delay()
        store(word.data_ptr(), value)
        assert flag.read() != value
        flag.wait(value, expected, check=compute.query, deadline_seconds=10)
        assert flag.read() == value


@pytest.mark.parametrize("pinned", [False, True])
def test_large_uploads_arrive(device, pinned):
    lane = device.lane(LaneRole.COPY_IN)
    size = 200_000_003
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.manual_seed(5))
    if pinned:
        source = device.pinned("in", size).take("x", [size], torch.uint8).copy_(source)
    target = device.arena("weights", size).take("x", [size], torch.uint8)
    for start in (0, 1):
        device.upload(source[start:], target[start:], lane)
    lane.synchronize()
    assert torch.equal(target.cpu(), source)


def test_a_pageable_source_may_change_once_upload_has_returned(device):
    lane = device.lane(LaneRole.COPY_IN)
    target = device.arena("weights", 400 * MIB).take("x", [4, 100 * MIB], torch.uint8)
    source = torch.empty(100 * MIB, dtype=torch.uint8)
    for row in range(4):
        source.fill_(row + 1)
        device.upload(source, target[row], lane)
        source.fill_(99)
    lane.synchronize()
    assert [(row.min().item(), row.max().item()) for row in target] == [
        (n, n) for n in (1, 2, 3, 4)
    ]


TEN_TB = 10 << 40
ASKED = r"10,995,116,277,760 bytes"


def test_memory_that_is_not_there_is_refused_with_the_numbers(device, compute):
    total = f"{device.memory().total:,}"
    numbers = rf"needs {ASKED}; [\d,]+ of {total} are free on cuda:0"
    with pytest.raises(DeviceError, match=rf"arena 'kv' {numbers}"):
        device.arena("kv", TEN_TB)
    with pytest.raises(DeviceError, match=rf"the workspace {numbers}"):
        device.reserve_workspace(TEN_TB)
    with pytest.raises(DeviceError, match=rf"'swap' needs {ASKED} of host memory"):
        device.pinned("swap", TEN_TB)
    x = device.arena("kv", MIB).take("x", [4], torch.int32)
    x.fill_(3)
    assert x.tolist() == [3] * 4


def test_a_closed_device_can_be_opened_again(device, compute):
    from ninfer_core.device.cuda.open import open_device

    reserved = torch.cuda.memory_reserved()
    address = device.arena("weights", GIB).take("x", [GIB], torch.uint8).data_ptr()
    device.reserve_workspace(GIB)
    assert allocation(address)
    assert torch.cuda.memory_reserved() >= reserved + GIB
    handle = compute.handle
    device.close()
    assert allocation(address) is None
    assert torch.cuda.memory_reserved() <= reserved
    assert current_handles() == (0, 0)
    with pytest.raises(DeviceError, match="cuda:0 is closed"):
        device.arena("more", 64)
    again = open_device(0)
    lane = again.lane(LaneRole.COMPUTE)
    assert lane.handle == handle
    x = again.arena("weights", 64).take("x", [4], torch.int32)
    with lane.enter():
        x.fill_(2)
        assert x.tolist() == [2] * 4
    again.close()
