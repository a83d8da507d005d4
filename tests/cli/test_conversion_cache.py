"""The cache of converted checkpoints: used again, made again after a change, never half made."""

from __future__ import annotations

import os

import pytest

from ninfer_core.artifact import ArtifactError, open_artifact
from ninfer_core.artifact.convert import no_progress
from ninfer_core.conversion import CacheError, cache_directory, cached_artifact


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NINFER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files(cache):
    return sorted(path for path in cache.rglob("*") if path.is_file())


def test_the_place_is_named_or_in_the_home(monkeypatch, tmp_path):
    assert cache_directory({"NINFER_CACHE_DIR": str(tmp_path)}) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory({}) == tmp_path / ".cache" / "ninfer"


def test_it_is_converted_once(checkpoint, host, cache):
    events = []
    first = cached_artifact(checkpoint, host, events.append)
    assert {event.phase for event in events} == {"hash", "convert", "publish"}
    written = first.stat()
    events.clear()
    assert cached_artifact(checkpoint, host, events.append) == first
    assert events == []
    assert first.stat() == written


def test_a_change_replaces_what_was_made(checkpoint, host, cache):
    first = cached_artifact(checkpoint, host, no_progress)
    weights = checkpoint / "model.safetensors"
    os.utime(weights, ns=(1, weights.stat().st_mtime_ns + 1))
    second = cached_artifact(checkpoint, host, no_progress)
    assert second != first
    assert files(cache) == [second]


def test_recipes_and_directories_have_artifacts_of_their_own(checkpoint, host, cache, tmp_path):
    import shutil

    shutil.copytree(checkpoint, tmp_path / "other" / "tiny")
    made = {
        cached_artifact(folder, host, no_progress, recipe=recipe)
        for folder in (checkpoint, tmp_path / "other" / "tiny")
        for recipe in ("bf16", "fp32")
    }
    assert files(cache) == sorted(made)
    assert len(made) == 4
    for path in made:
        with open_artifact(path) as artifact:
            assert path.name.startswith(artifact.directory.provenance.recipe)


def test_an_interrupted_conversion_leaves_nothing(checkpoint, host, cache):
    def stop(event):
        if event.phase == "convert":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_artifact(checkpoint, host, stop)
    assert files(cache) == []


def test_a_checkpoint_that_cannot_be_converted_leaves_nothing(checkpoint, host, cache):
    (checkpoint / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(ArtifactError):
        cached_artifact(checkpoint, host, no_progress)
    assert files(cache) == []


def test_a_cache_that_cannot_be_made_is_said(checkpoint, host, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NINFER_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="NINFER_CACHE_DIR"):
        cached_artifact(checkpoint, host, no_progress)
