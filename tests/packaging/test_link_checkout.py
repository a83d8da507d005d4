"""`tools/link_checkout.py` makes the checkout's distributions known, as installed ones are."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from ninfer_core.plugins.discovery import discover
from ninfer_core.version import __version__


@pytest.fixture(scope="module")
def linked(root, tmp_path_factory):
    """The folder of the metadata, and the path that was printed."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(root / "tools" / "link_checkout.py"), str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return site, done.stdout.strip().split(":")


def projects(root):
    files = [root / "pyproject.toml", *sorted(root.glob("plugins/*/pyproject.toml"))]
    return {f.parent: tomllib.loads(f.read_text(encoding="utf-8"))["project"] for f in files}


def test_every_plugin_is_found_with_its_version_and_needs(root, linked) -> None:
    site, _ = linked
    found = {candidate.name: candidate for candidate in discover([str(site)])}
    expected = {
        name: (module, project["name"], project.get("version", __version__), project)
        for project in projects(root).values()
        for name, module in project["entry-points"]["ninfer"].items()
    }
    assert found.keys() == expected.keys()
    for name, (module, dist, version, project) in expected.items():
        candidate = found[name]
        assert (candidate.module, candidate.dist, candidate.version) == (module, dist, version)
        assert candidate.requires == tuple(project["dependencies"])
        assert set(project["keywords"]) == set(candidate.keywords)


def test_the_standard_library_reads_it_too(linked) -> None:
    site, _ = linked
    [info] = site.glob("ninfer_core-*.dist-info")
    core: Distribution = PathDistribution(info)
    assert (core.metadata["Name"], core.version) == ("ninfer-core", __version__)
    groups = {entry.group for entry in core.entry_points}
    assert groups == {"ninfer", "pytest11", "console_scripts"}


def test_the_path_leads_to_every_package_and_ends_with_the_metadata(root, linked) -> None:
    site, path = linked
    assert list(map(Path, path)) == [*projects(root), site]
    for folder in path[:-1]:
        assert list(Path(folder).glob("ninfer_*/__init__.py"))


def test_the_program_runs(root, linked) -> None:
    site, path = linked
    done = subprocess.run(
        [site / "bin" / "ninfer", "--version"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(path)},
        check=True,
    )
    assert __version__ in done.stdout
