"""Conformance cases: what any plug-in must satisfy, for its author to run.

Either run ``pytest --pyargs ninfer_core.testing.conformance --ninfer-plugin NAME``, or subclass::

    class TestPlugin(PluginCase):
        plugin = "hello"

    class TestHello(CommandCase):
        plugin = "hello"
        command = "hello"
"""

from __future__ import annotations

from ninfer_core.testing.conformance.cases import CommandCase, ModelSourceCase, PluginCase

__all__ = ["CommandCase", "ModelSourceCase", "PluginCase"]
