"""Settings of every test run."""

from __future__ import annotations

import os
from pathlib import Path

# Two workers on two cores: threads that spin while they wait for each other would starve both.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton decides at its first import whether kernels are interpreted; without a GPU they must be.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
