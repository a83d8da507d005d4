"""Choosing an architecture for a checkpoint and an op backend for a device."""

from __future__ import annotations

import pytest

from ninfer_core import hookimpl
from ninfer_core.hookspecs import ArchitectureEntry, DeviceFacts, OpBackendEntry, Verdict
from ninfer_core.plugins import (
    PluginConflict,
    PluginNotFound,
    PluginRejected,
    architecture_for,
    host_of,
    op_backend_for,
)

CPU = DeviceFacts(kind="cpu")


class Models:
    def __init__(self, name, *classes):
        self.entry = ArchitectureEntry(name=name, architectures=classes, build="", frontend="")

    @hookimpl
    def ninfer_architectures(self):
        return [self.entry]


class Ops:
    def __init__(self, *entries):
        self.entries = entries

    @hookimpl
    def ninfer_op_backends(self):
        return self.entries


def ops(name, **fields):
    return OpBackendEntry(name=name, **{"device_kinds": ("cpu",), "load": "", **fields})


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


def test_highest_priority_that_accepts():
    never = Verdict.no("needs compute capability 9")
    host = host_of(
        {
            "o": Ops(
                ops("plain"),
                ops("fast", priority=5, accepts=lambda device: never),
                ops("gpu", priority=9, device_kinds=("cuda",)),
                ops("next", priority=3),
                ops("later", priority=8, unavailable="not in this version"),
            )
        }
    )
    assert op_backend_for(host, CPU).name == "next"


def test_named_backend_is_never_replaced():
    never = Verdict.no("needs compute capability 9")
    host = host_of({"o": Ops(ops("plain"), ops("fast", accepts=lambda device: never))})
    assert op_backend_for(host, CPU, "plain").name == "plain"
    with pytest.raises(PluginRejected, match="fast: needs compute capability 9"):
        op_backend_for(host, CPU, "fast")


def test_every_refusal_is_named():
    host = host_of({"o": Ops(ops("a"), ops("b", device_kinds=("tpu",), unavailable="later"))})
    with pytest.raises(PluginRejected, match=r"\(a: runs on cpu only; b: runs on tpu only\)"):
        op_backend_for(host, DeviceFacts(kind="cuda"))
