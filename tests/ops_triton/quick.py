"""Triton's interpreter patches the language anew at each call of a device function. Where it is
patched already that changes nothing, and takes half of the time of kernels made of many functions.
"""

from __future__ import annotations

from typing import Any

import pytest
import triton.language as tl
from triton.runtime import interpreter


def patch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip patching for a function that sees only patched modules."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        modules = [m for m in self.fn.__globals__.values() if m is tl or m is tl.core]
        if any(tl.core.is_builtin(module.load) for module in modules):
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call)
