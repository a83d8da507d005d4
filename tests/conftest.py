"""Settings of every test run."""

from __future__ import annotations

import os

# Two workers on two cores: threads that spin while they wait for each other would starve both.
os.environ.setdefault("OMP_NUM_THREADS", "1")
