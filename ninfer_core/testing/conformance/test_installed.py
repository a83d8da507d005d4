"""The general case for every plug-in that ``--ninfer-plugin`` names."""

from __future__ import annotations

from ninfer_core.testing.conformance import PluginCase


class TestInstalledPlugin(PluginCase):
    """Runs ``PluginCase`` for each named plug-in."""
