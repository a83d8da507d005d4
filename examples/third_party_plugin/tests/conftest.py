"""A shelf with two models on it."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def shelf(tmp_path, monkeypatch):
    """A folder with ``old.ninfer`` and ``new.ninfer``, as ``$NINFER_SHELF``."""
    for age, name, size in ((2, "old", 3_000_000), (1, "new", 1_500_000)):
        path = tmp_path / f"{name}.ninfer"
        path.write_bytes(bytes(size))
        os.utime(path, (1_700_000_000 - age, 1_700_000_000 - age))
    (tmp_path / "notes.txt").write_text("not a model")
    monkeypatch.setenv("NINFER_SHELF", str(tmp_path))
    return tmp_path
