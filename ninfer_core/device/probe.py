"""The one place that asks the GPU libraries whether there is a GPU to run on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

OLDEST_CAPABILITY = (8, 0)
"""The first generation with bf16 arithmetic and asynchronous copies."""

_LIBRARIES = {"cupy": "cupy", "cuda.core": "cuda-python"}


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """Whether GPU 0 can be used; when not, ``reason`` is a clause fit to show a user.

    ``capability`` is ``(major, minor)``; memory in bytes; ``count`` GPUs are visible.
    """

    ok: bool
    reason: str = ""
    name: str = ""
    capability: tuple[int, int] | None = None
    memory_bytes: int = 0
    count: int = 0


@cache
def probe_gpu() -> GpuStatus:
    """Ask once, and never raise: whatever the libraries throw becomes a reason.

    The libraries disagree on how a missing driver looks (error codes, RuntimeError, AssertionError,
    exceptions of their own), so anything that is an Exception counts.
    """
    try:
        return _ask()
    except Exception as error:
        detail = str(error).strip().splitlines() or ["no message"]
        return GpuStatus(False, f"{type(error).__name__}: {detail[0]}")


def _ask() -> GpuStatus:
    # With NVML, torch counts devices without starting CUDA, so that a later fork stays legal.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    if torch.version.cuda is None:
        return GpuStatus(False, f"torch {torch.__version__} is built without CUDA")
    if not torch.cuda.is_available():
        return GpuStatus(False, "torch finds no NVIDIA driver with a GPU")
    for module, distribution in _LIBRARIES.items():
        if not _installed(module):
            return GpuStatus(False, f"{distribution} is missing; install 'ninfer-core[cuda]'")
    return _describe(torch.cuda.get_device_properties(0), torch.cuda.device_count())


def _describe(properties: object, count: int) -> GpuStatus:
    name, memory, major, minor = (
        getattr(properties, field) for field in ("name", "total_memory", "major", "minor")
    )
    reason = ""
    if (major, minor) < OLDEST_CAPABILITY:
        reason = (
            f"{name} has compute capability {major}.{minor}; "
            f"{OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]} or newer is needed"
        )
    return GpuStatus(not reason, reason, name, (major, minor), memory, count)


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
