"""What surrounds the tensors: determinism, provenance, resources, parts, progress, report."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from pathlib import Path

import pytest
from safetensors.torch import save_file

from ninfer_core.artifact import ArtifactError, open_artifact, verify
from ninfer_core.artifact.convert import ConvertOptions, convert, encode
from ninfer_qwen3_5.convert import CONVERTER, convert_checkpoint

ARCHITECTURES = {"Qwen3_5ForCausalLM": CONVERTER}


def test_equal_checkpoints_give_equal_bytes(saved, tmp_path: Path) -> None:
    for name in ("a", "b"):
        convert_checkpoint(saved("untied"), tmp_path / f"{name}.ninfer")
    assert (tmp_path / "a.ninfer").read_bytes() == (tmp_path / "b.ninfer").read_bytes()


def test_provenance_names_the_sources(saved, out: Path) -> None:
    convert_checkpoint(saved("sharded"), out, name="tiny")
    directory = open_artifact(out).directory
    assert directory.name == "tiny"
    assert directory.provenance.recipe == "bf16"
    files = [saved("sharded") / "config.json", *sorted(saved("sharded").glob("*.safetensors"))]
    assert [(s.name, s.bytes, s.sha256) for s in directory.provenance.sources] == [
        (f.name, f.stat().st_size, hashlib.sha256(f.read_bytes()).hexdigest()) for f in files
    ]


def test_the_config_is_carried_verbatim(checkpoint, out: Path) -> None:
    source = checkpoint()
    source.configure(house_style={"unknown": [1, 2.5, None]})
    convert_checkpoint(source.path, out)
    assert open_artifact(out).component("text").config == source.config


def test_resources_are_carried(checkpoint, out: Path) -> None:
    source = checkpoint()
    files = {
        "tokenizer.json": '{"model": {"type": "BPE"}}',
        "tokenizer_config.json": '{"eos_token": "é"}',
        "chat_template.jinja": "{{ messages }}",
        "generation_config.json": '{"eos_token_id": [1, 2]}',
    }
    for name, text in files.items():
        (source.path / name).write_text(text, encoding="utf-8")
    report = convert_checkpoint(source.path, out)
    artifact = open_artifact(out)
    for name, text in files.items():
        data = artifact.resource("text", name)
        assert data is not None
        assert data.decode() == text
    assert set(report.resources) == set(files)


@pytest.mark.parametrize(
    "template",
    ["{{ x }}", [{"name": "tool", "template": "no"}, {"name": "default", "template": "{{ x }}"}]],
)
def test_the_template_may_stand_in_the_tokenizer_config(checkpoint, out: Path, template) -> None:
    source = checkpoint()
    text = json.dumps({"chat_template": template})
    (source.path / "tokenizer_config.json").write_text(text)
    convert_checkpoint(source.path, out)
    assert open_artifact(out).resource("text", "chat_template.jinja") == b"{{ x }}"


def test_absent_resources_are_said(saved, out: Path) -> None:
    report = convert_checkpoint(saved("untied"), out)
    assert report.resources == ("generation_config.json",)
    assert "tokenizer.json: not in the checkpoint" in report.notes
    assert open_artifact(out).resource("text", "tokenizer.json") is None


def test_the_report_is_plain_json(saved, out: Path) -> None:
    report = json.loads(json.dumps(convert_checkpoint(saved("untied"), out).to_json()))
    assert report["bytes"] == out.stat().st_size
    assert report["files"] == 1
    assert report["artifact_id"] == open_artifact(out).id
    assert report["name"] == "untied"


def test_large_artifacts_are_cut_into_parts(saved, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.ninfer", tmp_path / "cut.ninfer"
    convert_checkpoint(saved("untied"), whole)
    options = ConvertOptions(part_bytes=100_000)
    report = convert(saved("untied"), cut, architectures=ARCHITECTURES, options=options)
    assert report.files == len(list(tmp_path.glob("cut.ninfer*"))) > 3
    assert report.bytes == sum(path.stat().st_size for path in tmp_path.glob("cut.ninfer*"))
    one, many = open_artifact(whole), open_artifact(cut)
    for entry in one.directory.objects:
        assert many.object_bytes(entry.id) == one.object_bytes(entry.id)
    assert verify(many).ok


def test_streaming_in_small_blocks_changes_no_byte(
    saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_checkpoint(saved("untied"), tmp_path / "a.ninfer")
    monkeypatch.setattr(encode, "BLOCK_ELEMENTS", 100)
    convert_checkpoint(saved("untied"), tmp_path / "b.ninfer")
    assert (tmp_path / "a.ninfer").read_bytes() == (tmp_path / "b.ninfer").read_bytes()


def test_progress_grows_to_its_total_in_every_phase(saved, out: Path) -> None:
    events = []
    convert_checkpoint(saved("untied"), out, progress=events.append)
    for phase in ("hash", "convert", "publish"):
        own = [event for event in events if event.phase == phase]
        assert all(a.done <= b.done for a, b in pairwise(own))
        assert own[-1].done == own[-1].total
    assert [e.phase for e in events] == sorted(
        (e.phase for e in events), key=("hash", "convert", "publish").index
    )


def test_overwriting_is_only_done_when_asked(saved, out: Path) -> None:
    out.write_text("mine")
    with pytest.raises(ArtifactError, match="already exists"):
        convert_checkpoint(saved("untied"), out)
    assert out.read_text() == "mine"
    options = ConvertOptions(overwrite=True)
    convert(saved("untied"), out, architectures=ARCHITECTURES, options=options)
    assert verify(open_artifact(out)).ok


def test_a_sole_file_of_another_name_is_found(checkpoint, out: Path) -> None:
    source = checkpoint()
    save_file(source.tensors, source.path / "weights.safetensors")
    source.weights.unlink()
    convert_checkpoint(source.path, out)
    assert open_artifact(out).directory.provenance.sources[1].name == "weights.safetensors"
