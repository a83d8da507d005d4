"""Every kernel, as launched at real geometry, compiles for sm_90."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

FOLDER = Path(__file__).parent
SUBJECTS = sorted(path.stem.removeprefix("launches_") for path in FOLDER.glob("launches_*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
def test_it_compiles(subject):
    done = subprocess.run(
        [sys.executable, str(FOLDER / "compiling.py"), f"{subject}."],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
