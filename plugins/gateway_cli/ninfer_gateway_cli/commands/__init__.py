"""The commands, each imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_APPS = ("run_app", "chat_app", "convert_app", "inspect_app", "verify_app")


def __getattr__(name: str) -> Any:
    if name not in _APPS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name.removesuffix('_app')}").app
