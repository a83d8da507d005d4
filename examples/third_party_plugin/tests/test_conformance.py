"""The cases that NInfer gives to plug-in authors."""

from __future__ import annotations

from ninfer_core.testing.conformance import CommandCase, ModelSourceCase, PluginCase


class TestPlugin(PluginCase):
    plugin = "shelf"


class TestShelf(CommandCase):
    plugin = "shelf"
    command = "shelf"


class TestNewest(ModelSourceCase):
    plugin = "shelf"
    source = "newest"
