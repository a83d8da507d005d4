"""Damaged checkpoint directories and weight files: one clear error, nothing left on disk."""

from __future__ import annotations

import json
import struct

import pytest


def damage_directory(source, kind: str) -> None:
    weights = source.weights
    if kind == "no config":
        (source.path / "config.json").unlink()
    elif kind == "config list":
        (source.path / "config.json").write_text("[]")
    elif kind == "config text":
        (source.path / "config.json").write_text("{'a': 1}")
    elif kind == "no weights":
        weights.rename(source.path / "pytorch_model.bin")
    elif kind == "two weights":
        (source.path / "b.safetensors").write_bytes(weights.read_bytes())
        weights.rename(source.path / "a.safetensors")
    elif kind == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif kind == "empty":
        weights.write_bytes(b"")
    elif kind == "template":
        text = json.dumps({"chat_template": [{"name": "tool", "template": "x"}]})
        (source.path / "tokenizer_config.json").write_text(text)
    elif kind == "no directory":
        source.path = source.path / "absent"
    else:
        index = {"missing": "other.safetensors", "escape": "../x.safetensors"}[kind]
        text = json.dumps({"weight_map": {"a": index}})
        (source.path / "model.safetensors.index.json").write_text(text)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("no directory", "is no directory"),
        ("no config", "config.json: is missing"),
        ("config list", "config.json: expected an object"),
        ("config text", "is not valid JSON"),
        ("no weights", "holds 0 safetensors files"),
        ("two weights", "holds 2 safetensors files"),
        ("truncated", "is no range of"),
        ("empty", "the file is empty"),
        ("missing", "names other.safetensors, which is missing"),
        ("escape", "is no plain file name"),
        ("template", "no template named 'default'"),
    ],
)
def test_a_damaged_directory(checkpoint, refused, kind: str, problem: str) -> None:
    source = checkpoint()
    damage_directory(source, kind)
    assert problem in str(refused(source))


def test_a_tensor_in_two_shards(checkpoint, refused) -> None:
    source = checkpoint()
    (source.path / "b.safetensors").write_bytes(source.weights.read_bytes())
    names = {"a": "model.safetensors", "b": "b.safetensors"}
    (source.path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert "stands in b.safetensors and in model.safetensors" in refused(source).problem


def header(entries: dict, data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (struct.pack("<Q", 1 << 60) + b"{}", "states a header of"),
        (struct.pack("<Q", 2) + b"[]", "expected an object"),
        (header({"a": {"dtype": "F32", "shape": [1]}}), "'data_offsets' is missing"),
        (header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}), "no range"),
        (
            header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"1234"),
            "no range",
        ),
        (
            header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}, b"1234"),
            "no range",
        ),
        (
            header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234"),
            "does not take 4 bytes",
        ),
        (
            header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
            "expected an integer",
        ),
        (
            header(
                {
                    "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                    "b": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]},
                },
                b"123456",
            ),
            "a and b overlap",
        ),
    ],
)
def test_a_malformed_weight_file(checkpoint, refused, content: bytes, problem: str) -> None:
    source = checkpoint()
    source.weights.write_bytes(content)
    assert problem in str(refused(source))
