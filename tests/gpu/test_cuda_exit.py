"""Processes that end with a CUDA device: in order, left open, or with the GPU lost.

They run with faulthandler: one that a signal ends leaves its stack in the error output, and a line
written before the crash has reached the other one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.gpu

OPEN = """
import sys, threading
import torch
from ninfer_core.device.base import LaneRole
from ninfer_core.device.cuda.open import open_device
from ninfer_core.device.errors import DeviceError, DeviceLost
from ninfer_core.device.flags import Flag

device = open_device(0)
lane = device.lane(LaneRole.COMPUTE)
entered = lane.enter()
entered.__enter__()
x = device.arena("state", 1 << 20).take("x", [1000], torch.float32)
ring = device.pinned("ring", 1 << 20).take("ring", [1000], torch.float32)
x.zero_()
y = x + 1
graph = device.capture(lambda: ring.copy_(x.add_(1), non_blocking=True), lane)
graph.replay()
"""

ENDINGS = {
    "closed": "device.close()",
    "closed twice": "device.close(); device.close(); del device, lane, graph",
    "views after the device": "device.close(); del x, y, ring",
    "views before the device": "del x, y, ring; device.close()",
    "lane left first": "entered.__exit__(None, None, None); device.close()",
    "left open": "",
    "left at work": "torch.cuda._sleep(200_000_000); graph.replay()",
    "forgotten": "del device, lane",
    "closed by a thread": "t = threading.Thread(target=device.close); t.start(); t.join()",
    "torch's pinned memory": "p = torch.zeros(9, pin_memory=True); p.to('cuda', non_blocking=True)",
}

LOST = """
import cupy
kernel = cupy.RawKernel('extern "C" __global__ void die() { asm("trap;"); }', "die")
word = torch.zeros(1, dtype=torch.int32)
kernel((1,), (1,), ())
try:
    USE
except DeviceLost as error:
    print(error)
    device.close()
    sys.exit(error.exit_code)
"""

USES = {
    "lane.synchronize()": "waiting for compute",
    "lane.record().wait()": "recording on compute|waiting for an event",
    "while not lane.query(): pass": "asking compute",
    "for _ in range(100_000): graph.replay()": "replaying a graph",
    "Flag(word).wait(1, 0.0, check=lane.query, deadline_seconds=20)": "asking compute",
}

REFUSED = """
try:
    device.arena("kv", 10 << 40)
except DeviceError as error:
    print(error)
graph.replay()
lane.synchronize()
assert ring.tolist() == [2.0] * 1000
device.close()
"""

BAD_CAPTURE = """
lane.synchronize()
for _ in range(2):
    try:
        device.capture(lane.torch_stream.synchronize, lane)
    except DeviceError as error:
        print(error)
z = x + 1
again = device.capture(lambda: torch.add(x, 1, out=z), lane)
z.zero_()
again.replay()
graph.replay()
lane.synchronize()
assert z.tolist() == [2.0] * 1000 and ring.tolist() == [2.0] * 1000
device.close()
"""

NOT_THERE = "from ninfer_core.device.cuda.open import open_device\nopen_device(1000)"

SCRIPTS = {
    **{name: OPEN + ending for name, ending in ENDINGS.items()},
    **{use: OPEN + LOST.replace("USE", use) for use in USES},
    "raised": OPEN + "raise ValueError('mine')",
    "refused": OPEN + REFUSED,
    "bad capture": OPEN + BAD_CAPTURE,
    "not there": NOT_THERE,
}


def run(script):
    try:
        done = subprocess.run(
            [sys.executable, "-u", "-X", "faulthandler", "-c", script],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, "", "did not end"
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def ends():
    """Exit code, output and error output of every script, run some at a time."""
    from ninfer_core.device.probe import probe_gpu

    if not probe_gpu(0).ok:
        return {}
    with ThreadPoolExecutor(6) as threads:
        return dict(zip(SCRIPTS, threads.map(run, SCRIPTS.values()), strict=True))


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_process_ends_well(ends, ending):
    assert ends[ending] == (0, "", "")


def test_an_exception_ends_it_with_1(ends):
    code, _, stderr = ends["raised"]
    assert (code, stderr.splitlines()[-1]) == (1, "ValueError: mine")


@pytest.mark.parametrize("use", USES)
def test_a_lost_gpu_is_said_to_be_lost(ends, use):
    code, stdout, stderr = ends[use]
    said = f"exit code {code}\n{stdout}\n{stderr}"
    assert re.match(rf"cuda:0 was lost while ({USES[use]}): ", stdout), said
    assert code == 1, said


def test_memory_that_is_not_there_does_not_lose_the_gpu(ends):
    code, stdout, stderr = ends["refused"]
    assert (code, stderr) == (0, "")
    assert stdout.startswith("arena 'kv' needs 10,995,116,277,760 bytes; ")


def test_a_capture_that_fails_leaves_the_device_usable(ends):
    code, stdout, stderr = ends["bad capture"]
    assert code == 0, stderr
    lines = stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("cuda:0 failed while capturing a graph: ") for line in lines)


def test_a_gpu_that_is_not_there_is_refused_with_how_many_are(ends):
    code, _, stderr = ends["not there"]
    assert code == 1
    assert "there is no GPU 1000: this process sees" in stderr.splitlines()[-1]
