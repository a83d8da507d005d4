"""NInfer core: the engine, its contract, and the plug-in host.

Importing this package imports no tensor library; names resolve on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ninfer_core.errors import NinferError
from ninfer_core.version import API, __version__

if TYPE_CHECKING:
    from ninfer_core.engine import Engine
    from ninfer_core.engine.remote import RemoteEngine
    from ninfer_core.hookspecs.markers import hookimpl

__all__ = ["API", "Engine", "NinferError", "RemoteEngine", "__version__", "hookimpl"]

_LAZY = {
    "Engine": "ninfer_core.engine",
    "RemoteEngine": "ninfer_core.engine.remote",
    "hookimpl": "ninfer_core.hookspecs.markers",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
