"""The pluggy markers of project ``ninfer``; plug-ins import ``hookimpl`` from ``ninfer_core``."""

from __future__ import annotations

from typing import Final

import pluggy

PROJECT: Final = "ninfer"

hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
