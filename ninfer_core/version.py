"""The version of core and of the plug-in API; the only place either number is written."""

from __future__ import annotations

__version__ = "0.1.0"

API: tuple[int, int] = (1, 0)
"""Plug-in API ``(major, minor)``; a plug-in runs if majors are equal and its minor is not newer."""

CORE = "ninfer-core"
"""The distribution of this package."""
