"""Every kernel, as launched at real geometry, compiles for sm_90; drafters' also for sm_80."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

FOLDER = Path(__file__).parent
SUBJECTS = sorted(path.stem.removeprefix("launches_") for path in FOLDER.glob("launches_*.py"))
OLDER = ["drafting"]
"""Subjects whose kernels were written for both; others have not been held to it."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sm", "subject"), [*((90, name) for name in SUBJECTS), *((80, name) for name in OLDER)]
)
def test_it_compiles(sm, subject):
    done = subprocess.run(
        [sys.executable, str(FOLDER / "compiling.py"), str(sm), f"{subject}."],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
