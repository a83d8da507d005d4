"""What of the CUDA device works without a GPU: its errors, and how it stages uploads."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import pytest
import torch

from ninfer_core.device.arena import Block
from ninfer_core.device.base import LaneRole, MemoryFacts
from ninfer_core.device.driver import Driver, DriverError
from ninfer_core.device.errors import DeviceError, DeviceLost

pytest.importorskip("cupy")
pytest.importorskip("cuda.core")

from ninfer_core.device.cuda import device as cuda_device
from ninfer_core.device.cuda import errors, graphs, lanes, upload
from ninfer_core.device.cuda.lanes import CudaEvent, CudaLane
from ninfer_core.device.cuda.memory import pinned_block


class TorchError(RuntimeError):
    """As torch throws it: the number beside the text."""

    def __init__(self, code):
        super().__init__("CUDA error: something\nmore lines of advice")
        self.error_code = code


@pytest.fixture(autouse=True)
def nvidia(monkeypatch):
    """A driver that answers ``state`` when a stream is asked."""
    fake = SimpleNamespace(
        state=0,
        stream_state=lambda stream: fake.state,
        error_name=lambda code: f"CUDA_ERROR_{code}",
        launcher=lambda executable, stream, refused: lambda: fake.launched,
        upload_graph=lambda executable, stream: None,
        launched=0,
    )
    monkeypatch.setattr(errors, "driver", lambda: fake)
    monkeypatch.setattr(graphs, "driver", lambda: fake)
    return fake


@pytest.mark.parametrize("code", [214, 700, 702, 710, 715, 716, 719, 999])
def test_an_error_that_stays_loses_the_device(code):
    for error in (TorchError(code), DriverError("cuStreamQuery", code, "NAME")):
        found = errors.translated(error, "replaying a graph", "cuda:1")
        assert isinstance(found, DeviceLost)
        assert found.exit_code == 1
        assert str(found).startswith("cuda:1 was lost while replaying a graph: ")
        assert "\n" not in str(found)


@pytest.mark.parametrize("code", [1, 2, 201, 900])
def test_an_error_that_passes_does_not(code):
    found = errors.translated(TorchError(code), "capturing a graph", "cuda:0")
    assert type(found) is DeviceError
    assert str(found) == "cuda:0 failed while capturing a graph: CUDA error: something"


@pytest.mark.parametrize(("state", "kind"), [(0, DeviceError), (600, DeviceError),
                                             (719, DeviceLost)])  # fmt: skip
def test_an_error_without_a_number_is_judged_by_asking(nvidia, state, kind):
    nvidia.state = state
    assert type(errors.translated(RuntimeError("Triton Error"), "working", "cuda:0")) is kind


def test_the_numbers_of_memory():
    error = errors.out_of_memory("arena 'kv'", 5000, MemoryFacts(4096, 1024), "cuda:0")
    assert error.message == "arena 'kv' needs 5,000 bytes; 1,024 of 4,096 are free on cuda:0"
    assert "--max-context" in str(error)


class FailingStream:
    def __init__(self, code):
        self.code = code

    def fail(self, *args):
        raise TorchError(self.code)

    query = synchronize = wait_event = fail


@pytest.fixture
def lane():
    """A lane whose stream is not there."""
    made = CudaLane.__new__(CudaLane)
    made.role, made.device_name, made.index, made.handle = LaneRole.COMPUTE, "cuda:0", 0, 7
    made.torch_stream = None
    made.pace = SimpleNamespace(step=lambda: None)
    return made


@pytest.mark.parametrize(("code", "kind"), [(719, DeviceLost), (900, DeviceError)])
def test_lanes_and_events_translate_what_they_meet(lane, code, kind):
    lane.torch_stream = FailingStream(code)
    event = CudaEvent(FailingStream(code), "cuda:0")
    for use in (lane.query, lane.synchronize, event.done, event.wait, lambda: lane.wait_for(event)):
        with pytest.raises(DeviceError) as error:
            use()
        assert type(error.value) is kind


class FakeGraph:
    def __init__(self):
        self.resets = 0

    def raw_cuda_graph_exec(self):
        return 1

    def reset(self):
        self.resets += 1


def test_a_replay_checks_what_the_launch_returned(nvidia, lane):
    graph = graphs.CudaGraph(FakeGraph(), lane)
    assert graph.launch_path == graphs.DRIVER_LAUNCH
    graph.replay()
    nvidia.launched = 1
    with pytest.raises(DeviceError, match=r"failed while replaying a graph: .*CUDA_ERROR_1 \(1\)"):
        graph.replay()
    nvidia.launched = 719
    with pytest.raises(DeviceLost, match="lost while replaying a graph"):
        graph.replay()


@pytest.mark.parametrize(("state", "answer", "launches"), [(0, 0, 1), (600, 0, 1), (719, 719, 0)])
def test_nothing_is_launched_into_a_context_that_has_failed(state, answer, launches):
    launched = []
    library = SimpleNamespace(
        cuStreamQuery=lambda stream: state if stream.value == 7 else 400,
        cuGraphLaunch=lambda graph, stream: launched.append((graph.value, stream.value)) or 0,
    )
    made = Driver.__new__(Driver)
    made._holding_lock = library
    assert made.launcher(5, 7, errors.LOST)() == answer
    assert launched == [(5, 7)] * launches


@pytest.mark.parametrize(("code", "kind"), [(719, DeviceLost), (900, DeviceError)])
def test_a_replay_says_what_its_wait_met(nvidia, lane, code, kind):
    lane.pace = SimpleNamespace(step=FailingStream(code).fail)
    graph = graphs.CudaGraph(FakeGraph(), lane)
    with pytest.raises(DeviceError, match="while replaying a graph: ") as error:
        graph.replay()
    assert type(error.value) is kind


def test_launches_wait_for_those_of_two_bursts_before(monkeypatch):
    """An event that was recorded after n launches is done once those n are."""
    launched = done = 0

    class Mark:
        after = 0

        def record(self, stream):
            assert stream == "stream"
            self.after = launched

        def synchronize(self):
            nonlocal done
            done = max(done, self.after)

    monkeypatch.setattr(torch.cuda, "Event", Mark)
    pace = lanes.Pace("stream")
    most = 0
    for _ in range(10 * lanes.BURST):
        pace.step()
        launched += 1
        most = max(most, launched - done)
    assert most == 2 * lanes.BURST


def test_a_graph_is_kept_until_it_is_closed(lane):
    raw = FakeGraph()
    before = sys.getrefcount(raw)
    graph = graphs.CudaGraph(raw, lane)
    graph.close()
    assert sys.getrefcount(raw) == before
    graph = graphs.CudaGraph(raw, lane)
    del graph
    gc.collect()
    assert sys.getrefcount(raw) == before + 1


def test_a_pool_whose_capture_failed_is_left(monkeypatch, lane):
    pools, handles = [], iter(range(100))

    def capture(body, lane, pool):
        pools.append(pool)
        body()
        return SimpleNamespace(is_open=True)

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(cuda_device, "capture", capture)
    device = cuda_device.CudaDevice.__new__(cuda_device.CudaDevice)
    device._closed, device._graphs, device._lanes = False, [], {lane.role: lane}

    def broken():
        raise KeyError("mine")

    for body in (int, int, broken, int, int):
        try:
            device.capture(body, lane)
        except KeyError:
            assert body is broken
    first, second, failed, third, fourth = pools
    assert first == second == failed
    assert third == fourth != failed
    assert len(device._graphs) == 4


def test_a_closed_graph_is_released_once_and_refused(lane):
    graph = graphs.CudaGraph(raw := FakeGraph(), lane)
    graph.close()
    graph.close()
    assert raw.resets == 1
    assert not graph.is_open
    with pytest.raises(DeviceError, match="a closed graph cannot be replayed"):
        graph.replay()


def test_a_torch_that_hides_the_executable_replays_itself(lane):
    replays = []
    graph = graphs.CudaGraph(SimpleNamespace(replay=lambda: replays.append(1)), lane)
    assert graph.launch_path == graphs.TORCH_REPLAY
    graph.replay()
    assert replays == [1]


def test_pinned_memory_that_is_not_there_is_refused_before_a_page_is_touched():
    with pytest.raises(DeviceError, match=r"'swap' needs 10,995,116,277,760 bytes of host memory"):
        pinned_block(0)("swap", 10 << 40)


@pytest.fixture
def staged(monkeypatch, lane):
    """Send one tensor through buffers of 100 bytes; what happened, in order."""
    monkeypatch.setattr(upload, "PIECE", 100)
    happened = []

    def allocate(purpose, size):
        happened.append(f"allocate {size}")
        return Block(torch.empty(size, dtype=torch.uint8), lambda: happened.append("release"))

    def record():
        number = sum(step.startswith("record") for step in happened)
        happened.append(f"record {number}")
        return SimpleNamespace(wait=lambda: happened.append(f"wait {number}"))

    lane.record = record
    return upload.Uploader(allocate), lane, happened


@pytest.mark.parametrize(("size", "pieces"), [(1, 1), (24, 1), (25, 1), (26, 2), (50, 2), (77, 4)])
def test_every_piece_arrives(staged, size, pieces):
    uploader, lane, happened = staged
    source = torch.arange(size, dtype=torch.float32)
    target = torch.full((size + 8,), -1.0)
    uploader.send(source, target[4:-4], lane)
    assert target.tolist() == [-1] * 4 + list(range(size)) + [-1] * 4
    assert sum(step.startswith("record") for step in happened) == pieces


def test_a_buffer_is_filled_again_only_after_its_copy(staged):
    uploader, lane, happened = staged
    uploader.send(torch.zeros(250, dtype=torch.uint8), torch.ones(250, dtype=torch.uint8), lane)
    uploader.send(torch.zeros(1, dtype=torch.bool), torch.ones(1, dtype=torch.bool), lane)
    assert happened == [
        "allocate 100", "record 0", "allocate 100", "record 1",
        "wait 0", "record 2", "wait 1", "record 3",
    ]  # fmt: skip
    uploader.close()
    uploader.close()
    assert happened[8:] == ["release"] * 2


def test_nothing_is_staged_for_nothing(staged):
    uploader, lane, happened = staged
    uploader.send(torch.zeros(0, 3), torch.zeros(0, 3), lane)
    assert happened == []
