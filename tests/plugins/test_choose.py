"""Choosing the architecture that runs a checkpoint."""

from __future__ import annotations

import pytest

from ninfer_core import hookimpl
from ninfer_core.hookspecs import ArchitectureEntry
from ninfer_core.plugins import PluginConflict, PluginNotFound, architecture_for, host_of


class Models:
    def __init__(self, name, *classes):
        self.entry = ArchitectureEntry(name=name, architectures=classes, build="", frontend="")

    @hookimpl
    def ninfer_architectures(self):
        return [self.entry]


def test_architecture_by_class_name():
    host = host_of({"a": Models("a", "AForCausalLM"), "b": Models("b", "BForCausalLM", "B2")})
    assert architecture_for(host, ["Other", "B2"]).name == "b"


def test_unknown_architecture_names_it_and_what_is_installed():
    host = host_of({"a": Models("a", "AForCausalLM")})
    with pytest.raises(PluginNotFound, match=r"LlamaForCausalLM.*installed: AForCausalLM"):
        architecture_for(host, ["LlamaForCausalLM"])


def test_two_architectures_of_one_class():
    host = host_of({"a": Models("a", "A"), "b": Models("b", "A")})
    with pytest.raises(PluginConflict, match=r"plug-in a .* and plug-in b "):
        architecture_for(host, ["A"])
