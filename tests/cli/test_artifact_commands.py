"""`ninfer convert`, `inspect` and `verify`."""

from __future__ import annotations

import json

import pytest

from ninfer_core.artifact import open_artifact
from ninfer_core.artifact.formats import CONTIGUOUS


@pytest.fixture
def made(ninfer, checkpoint, tmp_path):
    """An artifact that `ninfer convert` wrote."""
    out = tmp_path / "out.ninfer"
    assert ninfer("convert", str(checkpoint), "-o", str(out)).code == 0
    return out


def test_convert_writes_the_weights_and_says_so(ninfer, checkpoint, tmp_path):
    out = tmp_path / "out.ninfer"
    done = ninfer(
        "convert", str(checkpoint), "-o", str(out), "--name", "Small", "--weights", "fp32"
    )
    assert done.code == 0
    assert f"{out}: Small, Tiny, recipe fp32, text; 1 tensors" in done.out
    with open_artifact(out) as artifact:
        summary = artifact.directory.provenance
        assert summary.recipe == "fp32"
        assert artifact.name == "Small"


def test_convert_as_json(ninfer, checkpoint, tmp_path):
    out = tmp_path / "out.ninfer"
    report = ninfer("convert", str(checkpoint), "-o", str(out), "--json").json
    assert (report["name"], report["architecture"]) == ("tiny", "Tiny")
    assert (report["recipe"], report["components"]) == ("bf16", ["text"])
    assert report["bytes"] == out.stat().st_size


def test_convert_replaces_only_when_told(ninfer, checkpoint, made):
    before = made.read_bytes()
    again = ninfer("convert", str(checkpoint), "-o", str(made), "--weights", "fp32")
    assert again.code == 2
    assert "already exists" in again.err
    assert made.read_bytes() == before
    forced = ninfer("convert", str(checkpoint), "-o", str(made), "--weights", "fp32", "--force")
    assert forced.code == 0
    assert made.read_bytes() != before


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--weights", "int3"], "--weights: 'int3'"),
        (["--head", "int3"], "--head: 'int3'"),
        (["--components", "text,ears"], "--components: 'ears'"),
    ],
)
def test_convert_names_what_it_does_not_know(ninfer, checkpoint, tmp_path, flags, said):
    done = ninfer("convert", str(checkpoint), "-o", str(tmp_path / "o.ninfer"), *flags)
    assert done.code == 2
    assert done.err.startswith("ninfer: error: ")
    assert said in done.err
    assert not list(tmp_path.glob("o.ninfer*"))


def test_convert_of_another_architecture(ninfer, checkpoint, tmp_path):
    (checkpoint / "config.json").write_text(json.dumps({"architectures": ["Gpt9"]}))
    done = ninfer("convert", str(checkpoint), "-o", str(tmp_path / "o.ninfer"))
    assert done.code == 2
    assert "Gpt9" in done.err
    assert "Tiny" in done.err


def test_convert_of_nothing(ninfer, tmp_path):
    done = ninfer("convert", str(tmp_path / "none"), "-o", str(tmp_path / "o.ninfer"), "--json")
    assert done.code == 2
    assert "none" in done.json["error"]["message"]


def test_inspect_shows_components_formats_and_origin(ninfer, made):
    done = ninfer("inspect", str(made))
    assert done.code == 0
    assert "tiny: Tiny" in done.out
    # 4 x 8 weights of two bytes
    assert "component  text: 32 parameters in 1 tensors, 64 bytes" in done.out
    assert f"format     bf16 ({CONTIGUOUS}): 1 tensors, 64 bytes" in done.out
    assert "all finite; worst rms error 0" in done.out
    assert "recipe bf16" in done.out
    assert "model.safetensors" in done.out


def test_inspect_as_json(ninfer, made):
    summary = ninfer("inspect", str(made), "--json").json
    assert (summary["name"], summary["architecture"]) == ("tiny", "Tiny")
    assert summary["components"][0]["parameters"] == 32
    assert summary["provenance"]["recipe"] == "bf16"


def test_verify_accepts_what_convert_wrote(ninfer, made):
    done = ninfer("verify", str(made))
    assert done.code == 0
    assert done.out.startswith(f"{made}: ok, 1 objects")
    assert ninfer("verify", str(made), "--json").json["ok"] is True


def test_verify_finds_a_flipped_bit(ninfer, made):
    data = bytearray(made.read_bytes())
    data[-1 - data[::-1].index(0x42)] ^= 1
    made.write_bytes(data)
    done = ninfer("verify", str(made), "--json")
    assert done.code == 2
    assert done.json["ok"] is False
    assert "SHA-256" in done.json["problems"][0]["message"]
    assert "SHA-256" in done.err


@pytest.mark.parametrize("command", ["inspect", "verify"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "foreign"])
def test_a_damaged_file_is_one_line(ninfer, made, command, damage):
    contents = {"empty": b"", "cut": made.read_bytes()[:-40], "foreign": b"GGUF" * 5000}
    if damage == "missing":
        made.unlink()
    else:
        made.write_bytes(contents[damage])
    done = ninfer(command, str(made))
    assert done.code == 2
    [line] = done.err.splitlines()
    assert line.startswith("ninfer: error: ")
    assert done.out == ""


def test_a_checkpoint_directory_runs_from_the_cache(ninfer, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("NINFER_CACHE_DIR", str(tmp_path / "cache"))
    assert ninfer("run", str(checkpoint), "--prompt", "hi").out == "hi\n"
    [(artifact, _)] = ninfer.opened
    assert tmp_path / "cache" in artifact.parents
    with open_artifact(artifact) as opened:
        assert opened.name == "tiny"
        assert list(opened.component_names) == ["text"]
