"""The artifact in the distribution is the committed checkpoint and its drafters, converted."""

from __future__ import annotations

import pytest

from ninfer_core.artifact.convert import ConvertOptions, convert
from ninfer_core.conversion import converters, draft_converters
from ninfer_core.plugins import load_plugins
from ninfer_demo_model import source


def test_converting_the_checkpoints_gives_the_artifact(checkpoint, folder, tmp_path):
    made, host = tmp_path / "made.ninfer", load_plugins()
    drafters = [folder / f"checkpoint_{kind}" for kind in ("dflash", "dflash2")]
    convert(
        checkpoint,
        made,
        architectures=converters(host),
        drafters=draft_converters(host),
        options=ConvertOptions(name="demo", drafters=drafters),
    )
    assert made.read_bytes() == source.ARTIFACT.read_bytes()


def test_size():
    assert source.ARTIFACT.stat().st_size <= 16_000_000


def test_a_missing_artifact_says_how_to_mend_it(monkeypatch, tmp_path):
    monkeypatch.setattr(source, "ARTIFACT", tmp_path / "demo.ninfer")
    with pytest.raises(source.DemoModelMissing, match="pip install --force-reinstall"):
        source.resolve()
