"""The one place that asks whether there is a GPU to run on, without importing a GPU library."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ninfer_core.device.driver import Processor, driver
from ninfer_core.hookspecs.records import Verdict

OLDEST_CAPABILITY = (8, 0)
"""The first generation with bf16 arithmetic and asynchronous copies."""

_LIBRARIES = {"cupy": "cupy", "cuda.core": "cuda-python"}


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """Whether a GPU can be used; when not, ``reason`` is a clause fit to show a user.

    ``capability`` is ``(major, minor)``; memory in bytes; ``count`` GPUs are visible.
    """

    ok: bool
    reason: str = ""
    name: str = ""
    capability: tuple[int, int] | None = None
    memory_bytes: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The installed torch: its version, and the CUDA it was built with ("" for none)."""

    version: str
    cuda: str


@cache
def probe_gpu(index: int = 0) -> GpuStatus:
    """Ask once about GPU ``index``, and never raise: whatever fails becomes a reason."""
    try:
        return _ask(index)
    except Exception as error:
        detail = str(error).strip().splitlines() or ["no message"]
        return GpuStatus(False, f"{type(error).__name__}: {detail[0]}")


def cuda_verdict() -> Verdict:
    """Whether the first GPU can be used; the probe of the ``cuda`` device."""
    status = probe_gpu(0)
    return Verdict(status.ok, status.reason)


def _ask(index: int) -> GpuStatus:
    lacking = _lacking_libraries()
    if lacking:
        return GpuStatus(False, lacking)
    try:
        asked = driver()
        asked.start()
    except Exception as error:
        return GpuStatus(False, f"no NVIDIA driver with a GPU answers ({error})")
    count = asked.count()
    if index >= count:
        return GpuStatus(False, _too_few(index, count), count=count)
    return _judge(asked.processor(index), count, _old_driver(asked.version()))


def _lacking_libraries() -> str:
    build = torch_build()
    if not build.cuda:
        return f"torch {build.version} is built without CUDA; install a CUDA build of torch"
    for module, distribution in _LIBRARIES.items():
        if not _installed(module):
            return f"{distribution} is missing; install 'ninfer-core[cuda]'"
    return ""


def _too_few(index: int, count: int) -> str:
    if not count:
        return "the NVIDIA driver shows no GPU; see CUDA_VISIBLE_DEVICES"
    if count == 1:
        return f"there is no GPU {index}: this process sees 1 GPU, cuda:0"
    return f"there is no GPU {index}: this process sees {count} GPUs, cuda:0 to cuda:{count - 1}"


def _old_driver(newest: tuple[int, int]) -> str:
    """Why the driver cannot run the installed torch; a driver runs every CUDA of its major."""
    cuda = torch_build().cuda
    if newest[0] >= int(cuda.partition(".")[0]):
        return ""
    return (
        f"the NVIDIA driver knows CUDA {newest[0]}.{newest[1]} and torch is built for {cuda}; "
        "install a newer driver"
    )


def _judge(processor: Processor, count: int, reason: str) -> GpuStatus:
    major, minor = processor.capability
    if processor.capability < OLDEST_CAPABILITY:
        reason = (
            f"{processor.name} has compute capability {major}.{minor}; "
            f"{OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]} or newer is needed"
        )
    return GpuStatus(
        not reason, reason, processor.name, processor.capability, processor.memory_bytes, count
    )


@cache
def torch_build() -> TorchBuild:
    """What torch says of itself in its ``version.py``, read without importing torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torch is not installed")
    facts = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    return TorchBuild(str(facts["__version__"]), facts.get("cuda") or "")


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
