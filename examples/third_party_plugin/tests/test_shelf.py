"""The shelf as a user meets it."""

from __future__ import annotations

import json

import pytest
from ninfer_shelf.folder import newest

from ninfer_core import NinferError
from ninfer_core.cli import main


def test_lists_newest_first(capsys):
    assert main(["shelf"]) == 0
    assert capsys.readouterr().out == "       1.5 MB  new\n       3.0 MB  old\n"


def test_lists_as_json(shelf, capsys):
    assert main(["shelf", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "new", "path": str(shelf / "new.ninfer"), "bytes": 1_500_000},
        {"name": "old", "path": str(shelf / "old.ninfer"), "bytes": 3_000_000},
    ]


def test_newest(shelf):
    assert newest() == shelf / "new.ninfer"


def test_empty_shelf(shelf):
    for path in shelf.glob("*.ninfer"):
        path.unlink()
    with pytest.raises(NinferError, match=r"holds no \.ninfer file"):
        newest()


def test_missing_shelf(shelf, monkeypatch, capsys):
    monkeypatch.setenv("NINFER_SHELF", str(shelf / "nowhere"))
    assert main(["shelf"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"ninfer: error: the shelf {shelf / 'nowhere'} is not a folder")
    assert "NINFER_SHELF" in error
