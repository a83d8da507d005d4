"""What is compiled ahead is what launches look up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import Operands

pytest.importorskip("triton")

from ninfer_ops_triton import launch
from ninfer_ops_triton.integers import integers
from ninfer_ops_triton.prepare import foresee, prepare


def test_real_launches_find_what_was_prepared(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("preparing.py"))],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_launches_are_foreseen_once_and_keep_no_memory() -> None:
    def kernel() -> None:
        raise AssertionError("ran")

    def rehearsal() -> None:
        for length in (64, 128, 33, 35, 1):
            launch.launch(kernel, (length,), x, x[1:], length, None, BLOCK=16)

    x = Operands().empty(64, dtype=torch.bfloat16)
    found = foresee(rehearsal)
    assert [entry.grid for entry in found] == [(64,), (33,), (1,)]
    for entry in found:
        whole, rest = entry.args[:2]
        assert (whole.dtype, rest.dtype) == (torch.bfloat16, torch.bfloat16)
        assert (whole.data_ptr(), rest.data_ptr()) == (0, 2)
        assert entry.options["BLOCK"] == 16
    assert launch.observers == []


def test_integers_that_no_kernel_wrote_read_as_zeros(monkeypatch) -> None:
    """In a rehearsal, where torch code may index by them; elsewhere nobody's memory is cleared."""
    monkeypatch.setattr(torch, "empty", lambda shape, **kind: torch.full(shape, 77, **kind))
    made: list[torch.Tensor] = []

    def rehearsal() -> None:
        made.append(integers(2, 3, dtype=torch.int64, device=torch.device("cpu")))

    rehearsal()
    foresee(rehearsal)
    with pytest.raises(ZeroDivisionError):
        foresee(lambda: 1 // 0)
    rehearsal()
    assert [int(tensor.sum()) for tensor in made] == [6 * 77, 0, 6 * 77]


def test_the_interpreter_prepares_nothing() -> None:
    if not launch.INTERPRET:
        pytest.skip("kernels are compiled here")

    def rehearsal() -> None:
        raise AssertionError("called")

    prepare(rehearsal)
