"""The conformance kit: our plug-ins pass it, and it catches what it is there to catch."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from ninfer_core.testing.conformance import CommandCase, ModelSourceCase, PluginCase

GOOD = """
from ninfer_core import hookimpl
from ninfer_core.hookspecs import OpBackendEntry, Verdict

def accepts(device) -> Verdict:
    return Verdict.yes()

@hookimpl
def ninfer_op_backends():
    yield OpBackendEntry(
        name="mine", summary="Mine", device_kinds=("cpu",), load="json:dumps", accepts=accepts
    )
"""


@pytest.fixture
def conform(site):
    """Run the kit on a plug-in; gives the exit code and the names of the failed checks."""

    def run(*plugins: str) -> tuple[int, set[str]]:
        options = [f"--ninfer-plugin={name}" for name in plugins]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--pyargs", "ninfer_core.testing.conformance", "-q",
             "-p", "no:cacheprovider", "-rf", *options],
            cwd=site.root, env={**os.environ, "PYTHONPATH": str(site.root)},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        failed = re.findall(r"^FAILED .*::(test_\w+)", done.stdout, re.MULTILINE)
        return done.returncode, set(failed)

    return run


class TestBuiltin(PluginCase):
    plugin = "builtin"


class TestPluginsCommand(CommandCase):
    plugin = "builtin"
    command = "plugins"


class TestDemo(ModelSourceCase):
    plugin = "demo_model"
    source = "demo"


def test_our_plugins_conform(conform, projects_of_plugins):
    assert conform(*projects_of_plugins) == (0, set())


@pytest.fixture
def projects_of_plugins(request):
    """The entry-point names of the plug-ins in this repository."""
    root = request.config.rootpath
    return sorted(path.parent.name for path in root.glob("plugins/*/pyproject.toml"))


def test_one_that_conforms(conform, site):
    module = site.install("mine", GOOD)
    make_package(site, module)
    assert conform("mine") == (0, set())


@pytest.mark.parametrize(
    ("old", "new", "metadata", "failed"),
    [
        ("", "", {"requires": ["ninfer-core"]}, "test_metadata"),
        ("import hookimpl", "import hookimpl; import numpy", {}, "test_import_is_light"),
        ('summary="Mine", ', "", {}, "test_entries_explain_themselves"),
        ("json:dumps", "json:no_such_name", {}, "test_loaders_resolve"),
        ("device) -> Verdict", "device, more) -> Verdict", {}, "test_accepts_takes_one_argument"),
        (" -> Verdict", "", {}, "test_accepts_takes_one_argument"),
    ],
)
def test_each_fault_is_caught_by_its_check(conform, site, old, new, metadata, failed):
    module = site.install("mine", GOOD.replace(old, new), **metadata)
    make_package(site, module)
    assert conform("mine") == (1, {failed})


def test_untyped_package_is_caught(conform, site):
    site.install("mine", GOOD)
    assert conform("mine") == (1, {"test_package_is_typed"})


def test_broken_plugin_does_not_pass(conform, site):
    make_package(site, site.install("mine", "raise RuntimeError('no')"))
    code, failed = conform("mine")
    assert code == 1
    assert {"test_loads", "test_import_is_light"} <= failed


def test_a_plugin_must_be_named(conform):
    assert conform() == (2, set())


def test_checks_cannot_be_replaced():
    with pytest.raises(TypeError, match=r"must not override PluginCase\.test_loads"):

        class Cheat(PluginCase):
            def test_loads(self):
                pass


def make_package(site, module):
    """Turn the installed module into a package with ``py.typed``."""
    package = site.root / module
    package.mkdir()
    (site.root / f"{module}.py").rename(package / "__init__.py")
    (package / "py.typed").touch()
