"""Access to entries: what may be used, what is refused, and in which words."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from ninfer_core.hookspecs import (
    DRAFT_BACKENDS,
    WEIGHT_FORMATS,
    DraftBackendEntry,
    MediaFrontendEntry,
    WeightFormatEntry,
    hookimpl,
)
from ninfer_core.plugins import (
    PluginConflict,
    PluginError,
    PluginInactive,
    PluginIncompatible,
    PluginLoadError,
    PluginNotFound,
    PluginPin,
    PluginUnavailable,
    host_of,
)


class Formats:
    def __init__(self, *entries):
        self.entries = entries

    @hookimpl
    def ninfer_weight_formats(self):
        return self.entries


class Drafts:
    def __init__(self, **fields):
        self.entry = DraftBackendEntry(name="echo", max_drafts=2, load="json:loads", **fields)

    @hookimpl
    def ninfer_draft_backends(self):
        return [self.entry]


def fmt(name, **fields):
    return WeightFormatEntry(name=name, **{"load": "json:dumps", **fields})


def test_entries_by_priority_then_name():
    host = host_of({"f": Formats(fmt("b"), fmt("a"), fmt("z", priority=1))})
    assert [e.name for e in host.entries(WEIGHT_FORMATS)] == ["z", "a", "b"]


def test_load_imports_the_object():
    assert host_of({"f": Formats(fmt("a"))}).load(WEIGHT_FORMATS, "a") is json.dumps


def test_unknown_name_suggests_and_lists():
    host = host_of({"f": Formats(fmt("bf16"), fmt("fp32"))})
    with pytest.raises(PluginNotFound) as caught:
        host.get(WEIGHT_FORMATS, "bf61")
    assert str(caught.value) == (
        "no weight format is named 'bf61' (did you mean 'bf16'? installed: bf16, fp32)"
    )


def test_load_names_plugin_and_loader_and_keeps_the_cause():
    host = host_of({"f": Formats(fmt("a", load="json:no_such_thing"))})
    with pytest.raises(PluginLoadError, match=r"plug-in f .*'json:no_such_thing'") as caught:
        host.load(WEIGHT_FORMATS, "a")
    assert isinstance(caught.value.__cause__, AttributeError)


def test_malformed_loader_string():
    host = host_of({"f": Formats(fmt("a", load="json"))})
    with pytest.raises(PluginLoadError, match="not of the form 'module:attribute'"):
        host.load(WEIGHT_FORMATS, "a")


@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        ("no-such-distribution>=2", "no-such-distribution>=2 is not installed"),
        ("pluggy>=99", "pluggy>=99 is needed and"),
    ],
)
def test_requirement_is_checked_before_the_import(requirement, said):
    host = host_of({"f": Formats(fmt("a", load="nowhere:x", requirements=(requirement,)))})
    with pytest.raises(PluginLoadError, match=said) as caught:
        host.load(WEIGHT_FORMATS, "a")
    assert caught.value.hint == f"pip install {requirement!r}"


def test_met_and_unneeded_requirements_pass():
    needs = ("pluggy>=1.7", "no-such-thing; python_version < '3'")
    host = host_of({"f": Formats(fmt("a", requirements=needs))})
    assert host.load(WEIGHT_FORMATS, "a") is json.dumps


def test_active_entries_need_their_plugin_named():
    host = host_of({"spec": Drafts()})
    assert host.entries(DRAFT_BACKENDS) == ()
    assert [e.name for e in host.described(DRAFT_BACKENDS)] == ["echo"]
    with pytest.raises(PluginInactive) as caught:
        host.get(DRAFT_BACKENDS, "echo")
    assert caught.value.hint == "add `--plugin spec`"
    host.activate("spec")
    assert host.report("spec").state == "active"
    assert host.load(DRAFT_BACKENDS, "echo") is json.loads
    assert host_of({"spec": Drafts()}, requested=["spec"]).get(DRAFT_BACKENDS, "echo")


def test_a_conflict_over_one_name_leaves_the_other_names_usable(site):
    source = """
    from ninfer_core import hookimpl
    from ninfer_core.hookspecs import DraftBackendEntry, WeightFormatEntry

    @hookimpl
    def ninfer_weight_formats():
        yield WeightFormatEntry(name="same", load="json:dumps")

    @hookimpl
    def ninfer_draft_backends():
        yield DraftBackendEntry(name="draft_of_NAME", max_drafts=1, load="json:loads")
    """
    for name in ("one", "two"):
        site.install(name, source.replace("NAME", name))
    host = site.load()
    host.activate("one")
    assert host.load(DRAFT_BACKENDS, "draft_of_one") is json.loads
    assert [e.name for e in host.entries(DRAFT_BACKENDS)] == ["draft_of_one"]
    assert host.report("one").state == "conflict"


def test_unavailable_is_listed_and_refused():
    host = host_of({"spec": Drafts(unavailable="not in this version")})
    assert host.report("spec").unavailable == "not in this version"
    with pytest.raises(PluginUnavailable, match="not in this version"):
        host.get(DRAFT_BACKENDS, "echo")
    with pytest.raises(PluginUnavailable, match="not in this version"):
        host_of({"spec": Drafts(unavailable="not in this version")}, requested=["spec"])


def test_a_plugin_of_a_seam_that_core_does_not_use_is_refused():
    entry = MediaFrontendEntry(name="echo", kinds=(), load="json:dumps")
    plugin = SimpleNamespace(ninfer_media_frontends=hookimpl(lambda: [entry]))
    assert host_of({"idle": plugin}).report("idle").unavailable.startswith("this version of")
    with pytest.raises(PluginUnavailable, match="pip install --upgrade ninfer-core"):
        host_of({"idle": plugin}, requested=["idle"])


def test_a_partly_available_plugin_may_be_requested():
    plugin = Formats(fmt("a"), fmt("b", unavailable="later"))
    host = host_of({"f": plugin}, requested=["f"])
    assert host.report("f").unavailable == ""
    with pytest.raises(PluginUnavailable):
        host.get(WEIGHT_FORMATS, "b")


def test_conflict_in_memory_raises():
    with pytest.raises(PluginConflict):
        host_of({"f": Formats(fmt("a")), "g": Formats(fmt("a"))})


def test_broken_plugin_in_memory_raises():
    with pytest.raises(PluginError, match="TypeError"):
        host_of({"f": Formats("not a record")})


def test_child_loads_exactly_what_the_parent_loaded(site):
    for name in ("one", "two", "late"):
        site.install(name)
    parent = site.load("one", blocked=("late",))
    assert parent.pins() == (
        PluginPin(name="one", dist="their-one", version="1.0"),
        PluginPin(name="two", dist="their-two", version="1.0"),
    )
    child = site.load("one", pins=parent.pins())
    assert child.pins() == parent.pins()
    assert child.report("one").state == "active"
    assert child.report("late").state == "blocked"


def test_child_refuses_another_version(site):
    site.install("one", version="2.0")
    pin = PluginPin(name="one", dist="their-one", version="1.0")
    with pytest.raises(PluginIncompatible, match=r"parent process runs their-one 1\.0"):
        site.load(pins=(pin,))


def test_child_names_a_missing_plugin(site):
    site.install("one")
    pin = PluginPin(name="gone", dist="their-gone", version="1.0")
    with pytest.raises(PluginNotFound, match="plug-in gone is not installed"):
        site.load(pins=(pin,))
