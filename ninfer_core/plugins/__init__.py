"""The plug-in host: discovery, version checks, selection, and typed access to what is registered.

Metadata first, import second; see ``docs/plugins.md``. Nothing here imports a tensor library.
"""

from __future__ import annotations

from ninfer_core.plugins.choose import architecture_for, op_backend_for
from ninfer_core.plugins.errors import (
    PluginBlocked,
    PluginConflict,
    PluginError,
    PluginInactive,
    PluginIncompatible,
    PluginLoadError,
    PluginNotFound,
    PluginUnavailable,
)
from ninfer_core.plugins.host import PluginHost
from ninfer_core.plugins.loader import host_of, load_plugins
from ninfer_core.plugins.objects import load_object
from ninfer_core.plugins.report import PluginPin, PluginReport, PluginState
from ninfer_core.plugins.selection import Selection

__all__ = [
    "PluginBlocked",
    "PluginConflict",
    "PluginError",
    "PluginHost",
    "PluginInactive",
    "PluginIncompatible",
    "PluginLoadError",
    "PluginNotFound",
    "PluginPin",
    "PluginReport",
    "PluginState",
    "PluginUnavailable",
    "Selection",
    "architecture_for",
    "host_of",
    "load_object",
    "load_plugins",
    "op_backend_for",
]
