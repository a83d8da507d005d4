"""What a figure depends on: versions, processor, device, driver, clocks."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

_DISTRIBUTIONS: Final = (
    *("ninfer-core", "ninfer-qwen3_5", "ninfer-ops-triton", "torch", "triton", "numpy"),
    *("cupy-cuda13x", "cuda-core", "cuda-bindings"),
)
_GPU_FACTS: Final = (
    *("name", "driver_version", "memory.total", "power.limit", "clocks.sm", "clocks.mem"),
    *("clocks.max.sm", "clocks.max.mem", "temperature.gpu"),
)


def conditions(devices: Sequence[str]) -> dict[str, Any]:
    """Facts of this moment; what cannot be read is None."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _DISTRIBUTIONS},
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "devices": {name: _gpu(name) for name in devices},
    }


def cuda_index(device: str) -> int | None:
    """N of ``cuda:N``; None for another kind of device."""
    kind, _, index = device.partition(":")
    return int(index or 0) if kind == "cuda" else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _gpu(device: str) -> dict[str, str] | None:
    """What ``nvidia-smi`` says of a CUDA device, as it prints it."""
    index, program = cuda_index(device), shutil.which("nvidia-smi")
    if index is None or program is None:
        return None
    command = [program, f"--query-gpu={','.join(_GPU_FACTS)}", "--format=csv,noheader"]
    command += ["-i", _physical(index)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(zip(_GPU_FACTS, map(str.strip, done.stdout.strip().split(",")), strict=False))


def _physical(index: int) -> str:
    """The name by which ``nvidia-smi`` knows the process's device ``index``."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"
