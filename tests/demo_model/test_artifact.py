"""The artifact in the distribution is the committed checkpoint, converted."""

from __future__ import annotations

import pytest

from ninfer_demo_model import source
from ninfer_qwen3_5.convert import convert_checkpoint


def test_converting_the_checkpoint_gives_the_artifact(checkpoint, tmp_path):
    made = tmp_path / "made.ninfer"
    convert_checkpoint(checkpoint, made, name="demo")
    assert made.read_bytes() == source.ARTIFACT.read_bytes()


def test_size():
    assert source.ARTIFACT.stat().st_size <= 12_500_000


def test_a_missing_artifact_says_how_to_mend_it(monkeypatch, tmp_path):
    monkeypatch.setattr(source, "ARTIFACT", tmp_path / "demo.ninfer")
    with pytest.raises(source.DemoModelMissing, match="pip install --force-reinstall"):
        source.resolve()
