"""What the host's memory holds."""

from __future__ import annotations

import os
from pathlib import Path


def total_memory() -> int:
    """Bytes of memory in all."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory() -> int:
    """What can be had without swapping, or all memory where the kernel does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):
        return total_memory()
