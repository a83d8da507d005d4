"""What the command line and the environment ask for."""

from __future__ import annotations

import pytest

from ninfer_core.cli.options import parse
from ninfer_core.errors import UsageError
from ninfer_core.plugins import Selection


def test_environment_adds_to_the_arguments():
    env = {
        "NINFER_PLUGINS": "Spec-MTP, vision,,",
        "NINFER_DISABLE_PLUGIN_AUTOLOAD": "1",
        "NINFER_STRICT_PLUGINS": "true",
    }
    selection = Selection.of(["mine", "vision"], ["b"], env)
    assert selection.requested == ("mine", "vision", "spec_mtp")
    assert selection.blocked == ("b",)
    assert (selection.autoload, selection.strict) == (False, True)


@pytest.mark.parametrize("off", ["", "0", "no", "False"])
def test_switches_that_are_off(off):
    env = {"NINFER_DISABLE_PLUGIN_AUTOLOAD": off, "NINFER_STRICT_PLUGINS": off}
    assert Selection.of((), (), env) == Selection()


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("NINFER_PLUGINS", raising=False)


@pytest.mark.parametrize(
    ("argv", "head", "rest", "requested", "blocked"),
    [
        ([], None, (), (), ()),
        (["run", "m"], "run", ("m",), (), ()),
        (["--plugin", "a", "run", "--plugin=b", "m"], "run", ("m",), ("a", "b"), ()),
        (["serve", "--no-plugin", "c", "--port", "1"], "serve", ("--port", "1"), (), ("c",)),
        (["run", "--", "--plugin", "a"], "run", ("--", "--plugin", "a"), (), ()),
        (["run", "--plugins", "x"], "run", ("--plugins", "x"), (), ()),
    ],
)
def test_selection_is_taken_out_of_the_command_line(argv, head, rest, requested, blocked):
    line = parse(argv)
    assert (line.head, line.rest) == (head, rest)
    assert (line.selection.requested, line.selection.blocked) == (requested, blocked)


@pytest.mark.parametrize("argv", [["--plugin"], ["--plugin="], ["run", "--no-plugin", "--json"]])
def test_missing_name(argv):
    with pytest.raises(UsageError, match="needs the name of a plug-in"):
        parse(argv)
