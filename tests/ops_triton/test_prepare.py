"""What is compiled ahead is what launches look up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Operands
from torch.overrides import TorchFunctionMode

pytest.importorskip("triton")

from ninfer_ops_triton import launch
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


class Used(TorchFunctionMode):
    """Memory was somebody's before."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.fill_(77) if "empty" in getattr(func, "__name__", "") else made


def test_what_no_kernel_wrote_reads_as_zeros() -> None:
    """Torch code of a rehearsal may index by it; nobody's memory is cleared outside of one."""
    made: list[torch.Tensor] = []

    def rehearsal() -> None:
        made.append(torch.empty((2, 3), dtype=torch.int64))
        made.append(torch.empty_like(made[0], dtype=torch.bfloat16))
        made.append(made[0].new_empty((4,)))
        made.append(torch.empty_strided((2, 2), (4, 1)))

    with Used():
        foresee(rehearsal)
        rehearsal()
    assert [int(tensor.count_nonzero()) for tensor in made] == [0, 0, 0, 0, 6, 6, 4, 4]


def test_the_interpreter_prepares_nothing() -> None:
    if not launch.INTERPRET:
        pytest.skip("kernels are compiled here")

    def rehearsal() -> None:
        raise AssertionError("called")

    prepare(rehearsal)
