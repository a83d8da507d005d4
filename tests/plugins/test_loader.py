"""Every plug-in ends in one state, with a reason and a mend, and harms no neighbour."""

from __future__ import annotations

import sys

import pytest

from ninfer_core.hookspecs import WEIGHT_FORMATS
from ninfer_core.plugins import (
    PluginBlocked,
    PluginConflict,
    PluginIncompatible,
    PluginLoadError,
    PluginNotFound,
)

HEAD = """
from ninfer_core import hookimpl
from ninfer_core.hookspecs import CommandEntry, WeightFormatEntry
"""


def names(host):
    return [entry.name for entry in host.entries(WEIGHT_FORMATS)]


def test_registered_and_active(site):
    module = site.install("quiet")
    site.install("asked")
    host = site.load("asked")
    quiet, asked = host.report("quiet"), host.report("asked")
    assert (quiet.state, asked.state) == ("registered", "active")
    assert (quiet.dist, quiet.version, quiet.reason) == ("their-quiet", "1.0", "")
    assert quiet.hooks == ("ninfer_weight_formats",)
    assert quiet.provides == ("weight format quiet",)
    assert quiet.location == str(site.root / f"{module}.py")
    assert names(host) == ["asked", "quiet"]
    assert site.lines == []


def test_requested_but_absent_names_the_command_that_installs_it(site):
    site.install("present")
    with pytest.raises(PluginNotFound) as caught:
        site.load("spec_mtp")
    assert str(caught.value) == (
        "plug-in spec_mtp is not installed (pip install ninfer-spec-mtp; installed: present)"
    )


def test_one_spelling_of_names(site):
    site.install("my-plug")
    assert site.load("my_plug").report("My-Plug").state == "active"


def test_blocked_is_not_imported(site):
    module = site.install("noisy", "raise RuntimeError('imported')")
    host = site.load(blocked=("noisy",))
    assert host.report("noisy").state == "blocked"
    assert module not in sys.modules
    assert site.lines == []


def test_blocked_and_requested_contradict(site):
    site.install("both")
    with pytest.raises(PluginBlocked, match=r"their-both 1\.0.*--no-plugin"):
        site.load("both", blocked=("both",))


def test_without_autoload_only_requested_load(site):
    module = site.install("silent")
    site.install("asked")
    host = site.load("asked", autoload=False)
    assert host.report("silent").state == "blocked"
    assert "NINFER_DISABLE_PLUGIN_AUTOLOAD" in host.report("silent").reason
    assert module not in sys.modules
    assert names(host) == ["asked"]


@pytest.mark.parametrize(
    ("metadata", "reason", "mend"),
    [
        (
            {"requires": ["ninfer-core>=9,<10"]},
            "needs ninfer-core>=9,<10, this is",
            "pip install --upgrade ninfer-core their-old",
        ),
        (
            {"requires": ["Ninfer_Core[cuda] (<0.1)"]},
            "needs ninfer-core<0.1, this is",
            "pip install --upgrade ninfer-core their-old",
        ),
        (
            {"keywords": "ninfer-api-2.0"},
            "was made for plug-in API 2.0, this core has 1.0",
            "pip install --upgrade ninfer-core",
        ),
        (
            {"keywords": "ninfer-api-1.1"},
            "was made for plug-in API 1.1, this core has 1.0",
            "pip install --upgrade ninfer-core",
        ),
        (
            {"keywords": "ninfer-api-0.9"},
            "was made for plug-in API 0.9, this core has 1.0",
            "pip install --upgrade their-old",
        ),
        (
            {"keywords": "inference"},
            'declares no plug-in API: its metadata lacks the keyword "ninfer-api-1.0"',
            "pip install --upgrade their-old",
        ),
    ],
)
def test_incompatible_is_found_before_import(site, metadata, reason, mend):
    module = site.install("old", "raise RuntimeError('imported')", **metadata)
    site.install("healthy")
    host = site.load()
    report = host.report("old")
    assert report.state == "incompatible"
    assert reason in report.reason
    assert mend in report.mend
    assert module not in sys.modules
    assert names(host) == ["healthy"]
    assert len(site.lines) == 1
    assert "their-old 1.0" in site.lines[0]
    with pytest.raises(PluginIncompatible):
        site.load("old")


@pytest.mark.parametrize(
    "requires", [["ninfer-core>=0.1,<0.2"], ["ninfer-core"], [], ["ninfer-core>=9; extra == 'x'"]]
)
def test_compatible_requirements(site, requires):
    site.install("fits", requires=requires)
    assert site.load().report("fits").state == "registered"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        (
            HEAD + "@hookimpl\ndef ninfer_weight_formats():\n    raise KeyError('gone')",
            "KeyError: 'gone'",
        ),
        (
            HEAD + "@hookimpl\ndef ninfer_weight_formats():\n    return 3",
            "TypeError: ninfer_weight_formats returned 3, not records",
        ),
        (
            HEAD + "@hookimpl\ndef ninfer_weight_formats():\n"
            "    yield CommandEntry(name='x', help='', load='')",
            "not a WeightFormatEntry",
        ),
        (
            HEAD + "@hookimpl\ndef ninfer_weight_formats():\n"
            "    yield WeightFormatEntry(name='No Good', load='')",
            "ValueError: WeightFormatEntry.name 'No Good' must be lower case",
        ),
        (
            HEAD + "@hookimpl\ndef ninfer_weight_formats():\n"
            "    for _ in range(2): yield WeightFormatEntry(name='x', load='')",
            "ninfer_weight_formats offers 'x' twice",
        ),
        (HEAD + "@hookimpl\ndef ninfer_wieght_formats():\n    return ()", "unknown hook"),
        (
            HEAD + "@hookimpl(wrapper=True)\ndef ninfer_weight_formats():\n    return (yield)",
            "cannot be wrapped",
        ),
        (HEAD + "@hookimpl\ndef ninfer_weight_formats(x):\n    return ()", "ninfer_weight_formats"),
    ],
)
def test_failure_is_one_line_and_does_not_spread(site, source, reason):
    site.install("bad", source)
    site.install("healthy")
    host = site.load()
    report = host.report("bad")
    assert report.state == "failed"
    assert reason in report.reason
    assert "pip install --force-reinstall their-bad" in report.mend
    assert names(host) == ["healthy"]
    [line] = site.lines
    assert "their-bad 1.0" in line
    assert "\n" not in line
    with pytest.raises(PluginLoadError):
        site.load("bad")


def test_a_failing_hook_withdraws_the_whole_plugin(site):
    site.install(
        "half",
        HEAD
        + "@hookimpl\ndef ninfer_weight_formats():\n"
        + "    yield WeightFormatEntry(name='half', load='json:dumps')\n"
        + "@hookimpl\ndef ninfer_commands():\n    raise RuntimeError('no')\n",
    )
    host = site.load()
    assert host.report("half").state == "failed"
    assert names(host) == []


def test_strict_makes_any_broken_plugin_fatal(site):
    site.install("bad", "import no_such_module_anywhere")
    with pytest.raises(PluginLoadError, match="their-bad"):
        site.load(strict=True)


def test_two_distributions_of_one_plugin_name(site):
    modules = [
        site.install("twin", "raise RuntimeError('imported')", dist="first-twin"),
        site.install("twin", "raise RuntimeError('imported')", dist="second-twin", version="2.0"),
    ]
    site.install("healthy")
    host = site.load()
    report = host.report("twin")
    assert report.state == "conflict"
    assert "first-twin 1.0 and second-twin 2.0" in report.reason
    assert report.mend == "pip uninstall first-twin or pip uninstall second-twin"
    assert not set(modules) & set(sys.modules)
    assert names(host) == ["healthy"]
    with pytest.raises(PluginConflict):
        site.load("twin")


def test_two_plugins_of_one_entry_name(site):
    source = HEAD + (
        "@hookimpl\ndef ninfer_weight_formats():\n"
        "    yield WeightFormatEntry(name='same', load='json:dumps')\n"
        "    yield WeightFormatEntry(name='only_{0}', load='json:dumps')\n"
    )
    site.install("one", source.format("one"))
    site.install("two", source.format("two"), version="2.0")
    host = site.load()
    assert names(host) == ["only_one", "only_two"]
    with pytest.raises(PluginConflict) as caught:
        host.get(WEIGHT_FORMATS, "same")
    assert "their-one 1.0" in str(caught.value)
    assert "their-two 2.0" in str(caught.value)
    assert [host.report(n).state for n in ("one", "two")] == ["conflict", "conflict"]
    assert len(site.lines) == 2
    with pytest.raises(PluginConflict):
        site.load("one")


def test_blocking_one_party_ends_the_conflict(site):
    site.install("one", dist="one")
    site.install("two", HEAD + "@hookimpl\ndef ninfer_weight_formats():\n"
                 "    yield WeightFormatEntry(name='one', load='json:dumps')\n")  # fmt: skip
    assert names(site.load(blocked=("two",))) == ["one"]
    assert names(site.load()) == []


def test_first_install_of_a_distribution_counts(site, tmp_path):
    site.install("twice")
    later = tmp_path / "later"
    later.mkdir()
    info = later / "their_twice-9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: Their.Twice\nVersion: 9.0\n\n")
    (info / "entry_points.txt").write_text("[ninfer]\ntwice = nowhere\n")
    from ninfer_core.plugins.discovery import discover

    [found] = discover([str(tmp_path), str(later)])
    assert found.version == "1.0"


def test_misspelt_block_is_said(site):
    site.install("here")
    site.load(blocked=("heer",))
    assert site.lines == ["plug-in heer is left out by --no-plugin, and is not installed anyway"]


def test_builtin_cannot_be_left_out(site):
    with pytest.raises(PluginBlocked, match="builtin is part of core"):
        site.load(blocked=("builtin",))
