"""The repository's Python files and its distributions."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def packages(root) -> dict[str, Path]:
    """Import package to its directory, for every distribution."""
    found = {"ninfer_core": root / "ninfer_core"}
    found |= {path.name: path for path in sorted(root.glob("plugins/*/ninfer_*"))}
    return found


@pytest.fixture(scope="session")
def projects(root) -> dict[str, dict]:
    """Distribution name to the content of its pyproject.toml, with its folder as ``folder``."""
    files = [root / "pyproject.toml", *sorted(root.glob("plugins/*/pyproject.toml"))]
    read = [{**tomllib.loads(file.read_text()), "folder": file.parent} for file in files]
    return {project["project"]["name"]: project for project in read}
