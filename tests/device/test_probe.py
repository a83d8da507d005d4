"""The GPU probe: it never raises, asks once, and its reasons name the cause and the mend."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from ninfer_core.device import probe
from ninfer_core.device.cuda.open import open_device
from ninfer_core.device.driver import DriverError, Processor
from ninfer_core.device.errors import DeviceUnavailable
from ninfer_core.device.probe import GpuStatus, TorchBuild, probe_gpu

GPU = Processor("Test GPU", (9, 0), 9)
OLD = Processor("Old GPU", (7, 5), 4)


class FakeDriver:
    """A driver that shows ``gpus`` and knows CUDA 13.0."""

    def __init__(self, *gpus, newest=(13, 0)):
        self.gpus = gpus
        self.newest = newest

    def start(self):
        pass

    def version(self):
        return self.newest

    def count(self):
        return len(self.gpus)

    def processor(self, index):
        return self.gpus[index]


@pytest.fixture(autouse=True)
def forget():
    probe.probe_gpu.cache_clear()
    yield
    probe.probe_gpu.cache_clear()


@pytest.fixture
def machine(monkeypatch):
    """A machine with the libraries of a GPU installation and the given driver."""

    def install(driver, cuda="13.0"):
        monkeypatch.setattr(probe, "driver", lambda: driver)
        monkeypatch.setattr(probe, "torch_build", lambda: TorchBuild("2.11.0", cuda))
        monkeypatch.setattr(probe, "find_spec", lambda module: object())

    return install


def test_a_usable_gpu_is_described(machine):
    machine(FakeDriver(GPU, OLD))
    assert probe_gpu() == GpuStatus(True, "", "Test GPU", (9, 0), 9, 2)
    assert probe.cuda_verdict().ok


def test_an_old_gpu_is_refused_by_its_capability(machine):
    machine(FakeDriver(GPU, OLD))
    status = probe_gpu(1)
    assert not status.ok
    assert status.reason == "Old GPU has compute capability 7.5; 8.0 or newer is needed"
    assert status.capability == (7, 5)


@pytest.mark.parametrize(
    ("gpus", "index", "reason"),
    [
        ([GPU], 5, "there is no GPU 5: this process sees 1 GPU, cuda:0"),
        ([GPU, GPU], 2, "there is no GPU 2: this process sees 2 GPUs, cuda:0 to cuda:1"),
        ([], 0, "the NVIDIA driver shows no GPU; see CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused_with_how_many_are(machine, gpus, index, reason):
    machine(FakeDriver(*gpus))
    assert probe_gpu(index) == GpuStatus(False, reason, count=len(gpus))
    with pytest.raises(DeviceUnavailable) as refused:
        open_device(index)
    assert str(refused.value) == f"device cuda:{index} cannot be used: {reason}"
    assert refused.value.exit_code == 2


def test_a_driver_older_than_torch_is_named(machine):
    machine(FakeDriver(GPU, newest=(12, 8)))
    assert probe_gpu().reason == (
        "the NVIDIA driver knows CUDA 12.8 and torch is built for 13.0; install a newer driver"
    )


def test_a_driver_of_the_same_major_is_enough(machine):
    machine(FakeDriver(GPU), cuda="13.2")
    assert probe_gpu().ok


@pytest.mark.parametrize("broken", ["cupy", "cuda.core"])
def test_a_library_that_does_not_import_is_named_when_opening(machine, monkeypatch, broken):
    machine(FakeDriver(GPU))
    for name in [name for name in sys.modules if name.startswith("ninfer_core.device.cuda.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, broken, None)
    with pytest.raises(DeviceUnavailable, match=rf"cuda:0 cannot be used: .*{broken}.*reinstall"):
        open_device(0)


@pytest.mark.parametrize("missing", ["cupy", "cuda.core"])
def test_missing_libraries_are_named(machine, monkeypatch, missing):
    def find(module):
        if module == missing:
            raise ModuleNotFoundError(module)
        return object()

    machine(FakeDriver(GPU))
    monkeypatch.setattr(probe, "find_spec", find)
    named = {"cupy": "cupy", "cuda.core": "cuda-python"}[missing]
    assert probe_gpu().reason == f"{named} is missing; install 'ninfer-core[cuda]'"


def test_a_torch_without_cuda_is_named(machine):
    machine(FakeDriver(GPU), cuda="")
    assert probe_gpu().reason == (
        "torch 2.11.0 is built without CUDA; install a CUDA build of torch"
    )


def test_what_torch_says_of_itself_is_read_without_importing_it():
    build = probe.torch_build()
    assert (build.version, build.cuda) == (torch.__version__, torch.version.cuda or "")
    code = (
        "import sys; from ninfer_core.device.probe import cuda_verdict; cuda_verdict()\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'cupy', 'cuda.core', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    "error", [OSError("libcuda.so.1: not found"), DriverError("cuInit", 100, "NO_DEVICE")]
)
def test_a_missing_driver_is_named(machine, monkeypatch, error):
    def fail():
        raise error

    machine(FakeDriver(GPU))
    monkeypatch.setattr(probe, "driver", fail)
    assert probe_gpu().reason == f"no NVIDIA driver with a GPU answers ({error})"


@pytest.mark.parametrize("kind", [RuntimeError, AssertionError, OSError])
def test_whatever_a_library_throws_is_a_reason(machine, monkeypatch, kind):
    def fail(index):
        raise kind("unheard of\nand more")

    machine(broken := FakeDriver(GPU))
    monkeypatch.setattr(broken, "processor", fail)
    assert probe_gpu() == GpuStatus(False, f"{kind.__name__}: unheard of")


def test_it_asks_once(monkeypatch):
    calls = []
    monkeypatch.setattr(probe, "_ask", lambda index: calls.append(index) or GpuStatus(False, "no"))
    assert probe_gpu(3) is probe_gpu(3)
    assert calls == [3]


def test_this_machine_can_be_asked():
    status = probe_gpu()
    assert status.ok is not bool(status.reason)


def test_the_interface_imports_no_tensor_library():
    names = ["base", "cuda.open", "driver", "errors", "probe", "spec"]
    imports = ", ".join(f"ninfer_core.device.{name}" for name in names)
    code = f"import sys, {imports}; sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
