"""The GPU probe: it never raises, asks once, and its reasons name the cause."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from ninfer_core.device import probe


@pytest.fixture(autouse=True)
def forget():
    probe.probe_gpu.cache_clear()
    yield
    probe.probe_gpu.cache_clear()


@pytest.fixture
def gpu(monkeypatch):
    """Make torch report a GPU of the given capability."""

    def report(major, minor):
        properties = SimpleNamespace(name="Test GPU", total_memory=9, major=major, minor=minor)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)

    return report


def test_a_usable_gpu_is_described(gpu, monkeypatch):
    gpu(9, 0)
    monkeypatch.setattr(probe, "find_spec", lambda module: object())
    assert probe.probe_gpu() == probe.GpuStatus(True, "", "Test GPU", (9, 0), 9, 2)


def test_an_old_gpu_is_refused_by_its_capability(gpu, monkeypatch):
    gpu(7, 5)
    monkeypatch.setattr(probe, "find_spec", lambda module: object())
    status = probe.probe_gpu()
    assert not status.ok
    assert status.reason == "Test GPU has compute capability 7.5; 8.0 or newer is needed"
    assert status.capability == (7, 5)


@pytest.mark.parametrize("missing", ["cupy", "cuda.core"])
def test_missing_libraries_are_named(gpu, monkeypatch, missing):
    gpu(9, 0)

    def find(module):
        if module == missing:
            raise ModuleNotFoundError(module)
        return object()

    monkeypatch.setattr(probe, "find_spec", find)
    status = probe.probe_gpu()
    assert not status.ok
    assert "ninfer-core[cuda]" in status.reason


def test_a_torch_without_cuda_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    status = probe.probe_gpu()
    assert not status.ok
    assert status.reason == f"torch {torch.__version__} is built without CUDA"


def test_a_missing_driver_is_named(gpu, monkeypatch):
    gpu(9, 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert probe.probe_gpu() == probe.GpuStatus(False, "torch finds no NVIDIA driver with a GPU")


@pytest.mark.parametrize("kind", [RuntimeError, AssertionError, OSError])
def test_whatever_a_library_throws_is_a_reason(gpu, monkeypatch, kind):
    def fail(index):
        raise kind("driver too old\nand more")

    gpu(9, 0)
    monkeypatch.setattr(probe, "find_spec", lambda module: object())
    monkeypatch.setattr(torch.cuda, "get_device_properties", fail)
    assert probe.probe_gpu() == probe.GpuStatus(False, f"{kind.__name__}: driver too old")


def test_it_asks_once(monkeypatch):
    calls = []
    monkeypatch.setattr(probe, "_ask", lambda: calls.append(1) or probe.GpuStatus(False, "no"))
    assert probe.probe_gpu() is probe.probe_gpu()
    assert calls == [1]


def test_this_machine_can_be_asked():
    status = probe.probe_gpu()
    assert status.ok is not bool(status.reason)


def test_the_interface_imports_no_tensor_library():
    names = ["base", "errors", "probe", "spec"]
    imports = ", ".join(f"ninfer_core.device.{name}" for name in names)
    code = f"import sys, {imports}; sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
