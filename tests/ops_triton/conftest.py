"""Fixtures of the tests of Triton kernels.

The same tests run on a GPU, where there is one, and else in Triton's interpreter on CPU tensors:
``tests/conftest.py`` asks for it before anything imports triton. What tests share is in
``harness.py``, which they import by that name.

That kernels compile is another matter: ``test_compiles.py`` starts ``compiling.py`` in a process
without the interpreter. That calls every entry of the ``LAUNCHES`` dictionaries of the files
``launches_*.py`` next to it (name to a function without arguments) under
``ninfer_ops_triton.launch.dry_run``; the functions call ops at real geometry on operands of
``harness.Operands(device="meta")``, and every distinct launch seen is compiled for sm_90, some for
sm_80 as well.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter():
    """The interpreter patches ``triton.language`` at each call of a device function, which takes
    most of a small kernel's time; once per launch and module is enough."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    tl = pytest.importorskip("triton.language")
    whole, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[tuple[bool, bool]] = set()

    def patch(fn: Any) -> Any:
        values = fn.__globals__.values()
        seen = any(value is tl for value in values), any(value is tl.core for value in values)
        if seen in patched:
            return interpreter._LangPatchScope()
        patched.add(seen)
        return whole(fn)

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()
        launch(self, *args, **kwargs)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch, call
    yield
    interpreter._patch_lang, interpreter.GridExecutor.__call__ = whole, launch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run: a GPU, or the CPU under the interpreter."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    pytest.importorskip("triton")
    from ninfer_ops_triton.launch import INTERPRET

    if not INTERPRET:
        pytest.skip("no GPU, and triton is not in its interpreter (TRITON_INTERPRET=1)")
    return torch.device("cpu")


@pytest.fixture
def operands(device):
    """Seeded random operands on the device."""
    from harness import Operands

    return Operands(20, device)


@pytest.fixture(autouse=True)
def _no_gpu_test_without_one(request):
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
