"""verify and summarise: every changed byte is noticed, every unsound tensor is named."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ninfer_core.artifact import (
    ArtifactDraft,
    ArtifactWriter,
    QualityBlock,
    TensorDraft,
    open_artifact,
    summarise,
    verify,
)
from ninfer_core.artifact.buffers import tensor_bytes
from ninfer_core.artifact.model import Binding, BindingPart, Component, Provenance
from ninfer_core.artifact.quality import QualityMeter
from ninfer_core.testing.artifact_mutations import SMALL_PAYLOAD, seal, unseal, write_small


def rewritten(small: Path, object_index: int, data: bytes, **quality) -> Path:
    """The small artifact with other bytes of one object under a matching hash."""
    directory, payload = unseal(small.read_bytes())
    entry = directory["objects"][object_index]
    start = entry["offset"]
    entry["sha256"] = hashlib.sha256(data).hexdigest()
    entry["quality"].update(quality)
    small.write_bytes(seal(directory, payload[:start] + data + payload[start + len(data) :]))
    return small


def write_one(path: Path, values: torch.Tensor, **quality) -> None:
    """An artifact of one fp32 tensor with the given quality fields."""
    sound = QualityBlock("float32", True, 0.0, 0.0, 0.0, 0.0, 0.0)
    shape = tuple(values.shape)
    draft = ArtifactDraft(
        name="one",
        components=(Component("text", {}, None, {}),),
        objects=(TensorDraft("w", shape, "fp32", "contiguous_le_v1"),),
        bindings=(Binding("text.w", shape, (BindingPart("w", 0, values.numel()),)),),
        uses=(),
        provenance=Provenance("test", "fp32", ()),
    )
    with ArtifactWriter(path, draft) as writer:
        writer.write("w", 0, tensor_bytes(values))
        writer.finish("w", replace(sound, **quality))
        writer.publish()


def problems(path: Path) -> list[tuple[str, str]]:
    report = verify(open_artifact(path))
    assert report.ok == (not report.problems)
    return [(problem.object, problem.message) for problem in report.problems]


def test_a_sound_artifact_has_no_problem(small: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = verify(open_artifact(small), progress=lambda done, total: seen.append((done, total)))
    assert report.ok
    assert (report.objects, report.bytes) == (5, 88)
    assert seen[-1] == (88, 88)
    assert json.loads(json.dumps(report.to_json()))["ok"] is True


@pytest.mark.parametrize("position", [0, 47, 256, 700 - 188, 768, 787])
def test_one_flipped_bit_is_found_in_its_object(small: Path, position: int) -> None:
    data = bytearray(small.read_bytes())
    data[len(data) - 788 + position] ^= 4
    small.write_bytes(bytes(data))
    expected = next(
        entry.id
        for entry in open_artifact(small).directory.objects
        if entry.offset <= position < entry.offset + entry.bytes
    )
    assert (expected, "its bytes do not match the recorded SHA-256") in problems(small)


def test_padding_must_be_zero(small: Path) -> None:
    data = bytearray(small.read_bytes())
    data[len(data) - 788 + 100] = 1
    small.write_bytes(bytes(data))
    assert problems(small) == [("payload", "bytes before offset 256 should be zeros")]


def test_padding_at_the_end_of_a_part_must_be_zero(tmp_path: Path) -> None:
    path = tmp_path / "a.ninfer"
    write_small(path, part_bytes=64)
    assert problems(path) == []
    part = tmp_path / "a.ninfer.part-0001"
    part.write_bytes(part.read_bytes()[:-1] + b"\x01")
    assert problems(path) == [("payload", "bytes before offset 8192 should be zeros")]


def test_collapsed_rows_are_caught_from_the_bytes_alone(small: Path) -> None:
    data = SMALL_PAYLOAD["text.gate_up"][:32] + bytes(16)
    found = problems(rewritten(small, 0, data, zero_row_share=1 / 3))
    assert found == [("text.gate_up", "33.3% of its rows are all zero: the tensor has collapsed")]


def test_a_false_zero_row_share_is_caught(small: Path) -> None:
    found = problems(rewritten(small, 0, SMALL_PAYLOAD["text.gate_up"], zero_row_limit=0.5))
    assert found == []
    data = SMALL_PAYLOAD["text.gate_up"][:40] + bytes(8)
    found = problems(rewritten(small, 0, data, zero_row_limit=0.5))
    assert found == [
        ("text.gate_up", f"has a zero-row share of {1 / 6}, the directory says 0.0"),
    ]


def test_negative_zero_rows_are_zero_rows(small: Path) -> None:
    data = SMALL_PAYLOAD["text.gate_up"][:40] + struct.pack("<4H", 0, 0x8000, 0x8000, 0)
    assert "collapsed" in problems(rewritten(small, 0, data))[0][1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_is_caught(small: Path, value: float) -> None:
    data = struct.pack("<3f", 1.0, value, 0.5)
    assert problems(rewritten(small, 1, data)) == [
        ("text.norm", "holds values that are not finite")
    ]


@pytest.mark.parametrize(
    ("quality", "problem"),
    [
        ({"finite": False}, "was converted with values that are not finite"),
        ({"collapsed_row_share": 0.25}, "25.0% of its rows collapsed"),
        ({"rms_relative_error": 0.01}, "rms relative error of 0.01, above the limit 0.00390625"),
        ({"zero_row_limit": 0.75}, "zero-row limit of 0.75, above 0.5"),
    ],
)
def test_what_the_quality_block_admits_is_a_problem(small: Path, quality, problem: str) -> None:
    found = problems(rewritten(small, 0, SMALL_PAYLOAD["text.gate_up"], **quality))
    assert len(found) == 1
    assert problem in found[0][1]


def test_a_format_nobody_registered_is_listed_as_unchecked(redo) -> None:
    path = redo(lambda root: root["objects"][1].update(format="q9_g64"))
    report = verify(open_artifact(path))
    assert report.ok
    assert report.unchecked == ("text.norm",)


def test_the_summary_counts_by_hand(small: Path) -> None:
    summary = summarise(open_artifact(small)).to_json()
    assert json.loads(json.dumps(summary))["name"] == "small"
    text, mtp = summary["components"]
    # gate 8 + up 16 + head 8 (shared) + norm 3 + ids 2 elements; 48 + 12 + 8 + 12 bytes
    assert (text["name"], text["tensors"], text["parameters"], text["bytes"]) == ("text", 3, 37, 80)
    assert (mtp["target"], mtp["tensors"], mtp["bytes"]) == ("text", 1, 8)
    assert text["resources"] == ("tokenizer.json",)
    assert [(f["name"], f["tensors"], f["bytes"]) for f in summary["formats"]] == [
        ("bf16", 2, 56),
        ("fp32", 1, 12),
        ("int32", 1, 8),
    ]
    assert summary["architecture"] == "TinyForCausalLM"
    assert summary["files"] == (788,)
    assert summary["provenance"]["recipe"] == "bf16"


def test_quality_is_measured_as_defined() -> None:
    source = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-9, 0.0], [1.0, 1.0]])
    stored = torch.tensor([[3.0, 4.5], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    meter = QualityMeter()
    meter.add(source[:1], stored[:1])
    meter.add(source[1:], stored[1:])
    block = meter.block("float32", 0.5)
    assert block.max_abs_error == 0.5
    assert block.rms_relative_error == pytest.approx(0.5 / 27**0.5, rel=1e-5)
    assert (block.zero_row_share, block.collapsed_row_share) == (0.5, 0.25)
    assert block.finite


def test_vectors_have_no_rows() -> None:
    meter = QualityMeter(vector=True)
    meter.add(torch.zeros(1, 4), None)
    block = meter.block("float32", 0.0)
    assert (block.zero_row_share, block.rms_relative_error) == (0.0, 0.0)


def test_rows_run_along_the_last_axis(tmp_path: Path) -> None:
    values = torch.ones(2, 3, 4)
    values[1, 2] = 0
    path = tmp_path / "a.ninfer"
    write_one(path, values, zero_row_limit=0.5, zero_row_share=1 / 6)
    assert problems(path) == []


def test_meters_of_members_add_up() -> None:
    whole, first, second = QualityMeter(), QualityMeter(), QualityMeter()
    source = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    stored = source.bfloat16().float()
    stored[5] = 0
    whole.add(source, stored)
    first.add(source[:2], stored[:2])
    second.add(source[2:], stored[2:])
    first.merge(second)
    assert first.block("float32", 0.0) == whole.block("float32", 0.0)
    assert first.collapsed_rows == 1
