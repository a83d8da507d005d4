"""Fixtures of the artifact tests: a small artifact on disk and a way to damage its directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninfer_core.testing.artifact_mutations import seal, unseal, write_small


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.ninfer"
    write_small(path)
    return path


@pytest.fixture
def redo(small: Path, tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], Any]], Path]:
    """Change the directory of the small artifact and seal the result under a fresh id."""

    def change(edit: Callable[[dict[str, Any]], Any]) -> Path:
        directory, payload = unseal(small.read_bytes())
        edit(directory)
        path = tmp_path / "changed.ninfer"
        path.write_bytes(seal(directory, payload))
        return path

    return change
