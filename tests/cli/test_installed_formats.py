"""Weight formats of plug-ins: the commands read and write with them, and survive broken ones."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import pytest
import torch

from ninfer_core import builtin, hookimpl
from ninfer_core.artifact import Binder, open_artifact
from ninfer_core.artifact.convert import (
    ConvertOptions,
    Recipe,
    RecipeBook,
    Storage,
    convert,
)
from ninfer_core.artifact.formats import BF16
from ninfer_core.conversion import converters, weight_formats
from ninfer_core.hookspecs import WeightFormatEntry
from ninfer_core.plugins import PluginLoadError, host_of


def store_as_theirs(builder):
    for parameter in builder.parameters:
        builder.assign(parameter, Storage("theirs"))


RECIPES = RecipeBook([Recipe("theirs", "everything in their format", store_as_theirs)])


@pytest.fixture
def made(host, checkpoint, tmp_path):
    """An artifact in the format `theirs`."""
    out = tmp_path / "theirs.ninfer"
    convert(
        checkpoint,
        out,
        architectures=converters(host),
        options=ConvertOptions(recipe="theirs"),
        formats=weight_formats(with_formats()),
        recipes=RECIPES,
    )
    return out


def with_formats():
    """A host with a format that works, bf16 by another name, and one that cannot be loaded."""

    class Formats:
        @hookimpl
        def ninfer_weight_formats(self):
            yield WeightFormatEntry(name="theirs", load="their_formats:THEIRS")
            yield WeightFormatEntry(name="torn", load="their_formats:NOT_THERE")

    return host_of({"builtin": builtin, "formats": Formats()})


@pytest.fixture(autouse=True)
def their_module(monkeypatch):
    module = types.ModuleType("their_formats")
    module.THEIRS = replace(BF16, name="theirs")
    monkeypatch.setitem(sys.modules, "their_formats", module)


def test_verify_checks_the_values_of_an_installed_format(ninfer, made):
    alone = ninfer("verify", str(made), "--json")
    assert alone.json["unchecked"] == ["text.w"]
    installed = ninfer.on(with_formats())
    done = installed("verify", str(made), "--json")
    assert (done.code, done.err) == (0, "")
    assert (done.json["ok"], done.json["unchecked"]) == (True, [])


def test_inspect_names_the_format(ninfer, made):
    assert "format     theirs (" in ninfer.on(with_formats())("inspect", str(made)).out


def test_a_binder_decodes_with_the_formats_of_the_artifact(made):
    with open_artifact(made, weight_formats(with_formats())) as artifact:
        values = Binder(artifact).tensor("text.w", (4, 8)).to_torch()
        assert torch.equal(values.float(), torch.arange(1.0, 33.0).reshape(4, 8))


def test_a_broken_format_harms_only_who_needs_it():
    formats = weight_formats(with_formats())
    assert {"bf16", "theirs", "torn"} <= set(formats.names())
    assert formats.find("bf16") is BF16
    with pytest.raises(PluginLoadError, match="weight format torn"):
        formats.find("torn")
