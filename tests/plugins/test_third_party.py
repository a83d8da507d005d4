"""The example of another author: installed from its own folder, it works and conforms."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def folder(request):
    """The example's source."""
    return request.config.rootpath / "examples" / "third_party_plugin"


@pytest.fixture(scope="module")
def environment(folder, tmp_path_factory):
    """Environment variables of a process that has the example installed."""
    site = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--disable-pip-version-check", "--target", str(site), str(folder)],
        check=True, timeout=300,
    )  # fmt: skip
    return {**os.environ, "PYTHONPATH": str(site)}


def ninfer(*args, **env):
    code = "import sys; from ninfer_core.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_its_own_tests_pass(folder, environment):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests")],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_it_is_listed(environment):
    plugins = json.loads(ninfer("plugins", "--json", **environment).stdout)["plugins"]
    [shelf] = [plugin for plugin in plugins if plugin["name"] == "shelf"]
    assert shelf["state"] == "registered"
    assert shelf["dist"] == "ninfer-shelf"
    assert shelf["provides"] == ["model source newest", "command shelf"]


def test_its_command_is_in_the_help(environment):
    assert "  shelf    List the models on the shelf.\n" in ninfer("--help", **environment).stdout


def test_core_does_not_know_it(request):
    core = request.config.rootpath / "ninfer_core"
    assert [p for p in core.rglob("*.py") if "shelf" in p.read_text()] == []
