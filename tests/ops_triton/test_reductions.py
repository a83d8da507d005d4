"""Kernels that must give the same bits add in the same order on a GPU, as far as compilation says.

What a tensor's elements are added by is its layout, which the compiler chooses in each kernel by
itself. Equal layouts are needed for equal bits; that bits are equal is tested on GPUs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

FOLDER = Path(__file__).parent


def reductions(cache: Path, *parts: str) -> dict[str, set[tuple[str, ...]]]:
    """Kernel name to the layouts of its reductions, in every form that it is compiled in.

    ``cache`` is an empty folder for what is compiled: one that others filled may hold no more than
    binaries, and layouts are read from what the compiler makes before them.
    """
    done = subprocess.run(
        [sys.executable, str(FOLDER / "reductions.py"), *parts],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, set[tuple[str, ...]]] = {}
    for line in done.stdout.splitlines():
        name, layouts = json.loads(line)
        found.setdefault(name, set()).add(tuple(layouts))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("heads", [16, 48])
def test_verified_rows_reduce_as_steps_do(heads, tmp_path):
    found = reductions(tmp_path, f"gdn.mix_{heads}_1", f"gdn.mix_verify_{heads}_1")
    assert set(found) == {"mix_kernel", "mix_verify_kernel"}
    (step,) = found["mix_kernel"]
    assert len(step) == 4
    assert found["mix_verify_kernel"] == {step}
