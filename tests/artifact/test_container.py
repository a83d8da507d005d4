"""The container's bytes, assembled by hand and compared with reader and writer."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ninfer_core.artifact import (
    ArtifactDraft,
    ArtifactError,
    ArtifactWriter,
    QualityBlock,
    ResourceDraft,
    TensorDraft,
    open_artifact,
)
from ninfer_core.artifact.model import (
    Binding,
    BindingPart,
    Component,
    Provenance,
    ResourceObject,
    SourceFile,
    TensorObject,
)
from ninfer_core.testing.artifact_mutations import write_small

TENSOR = struct.pack("<2f", 1.5, -0.25)
RESOURCE = b"hello"
SOURCE_SHA = "cd" * 32
JSON = (
    '{"metadata":{"name":"golden"},'
    '"provenance":{"converter":"hand","recipe":"fp32","sources":'
    '[{"name":"m.safetensors","bytes":9,"sha256":"@source"}]},'
    '"files":[{"bytes":13}],'
    '"components":{"text":{"config":{"a":[1,2.5]},"target":null,"resources":{"r":"res"}}},'
    '"objects":['
    '{"id":"w","kind":"tensor","shape":[2],"format":"fp32","layout":"contiguous_le_v1",'
    '"offset":0,"bytes":8,"sha256":"@tensor","quality":{"source_dtype":"float32","finite":true,'
    '"max_abs_error":0.0,"rms_relative_error":0.0,"zero_row_share":0.0,'
    '"collapsed_row_share":0.0,"zero_row_limit":0.0}},'
    '{"id":"res","kind":"resource","format":"raw_bytes_v1","offset":8,"bytes":5,'
    '"sha256":"@resource"}],'
    '"bindings":[{"parameter":"text.w","shape":[2],'
    '"parts":[{"object":"w","first":0,"count":2}]}],'
    '"uses":[]}'
)
JSON = JSON.replace("@source", SOURCE_SHA)
JSON = JSON.replace("@tensor", hashlib.sha256(TENSOR).hexdigest())
JSON = JSON.replace("@resource", hashlib.sha256(RESOURCE).hexdigest())


def golden_file() -> bytes:
    """Header, JSON padded with blanks to one page, then the payload."""
    directory = JSON.encode().ljust(4096 - 32)
    identity = hashlib.sha256(JSON.encode()).digest()[:16]
    header = b"NINFER\x00\x03" + struct.pack("<Q", len(directory)) + identity
    return header + directory + TENSOR + RESOURCE


def test_a_hand_made_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "golden.ninfer"
    path.write_bytes(golden_file())
    artifact = open_artifact(path)
    assert artifact.name == "golden"
    assert artifact.id == hashlib.sha256(JSON.encode()).hexdigest()[:32]
    assert artifact.component("text").config == {"a": [1, 2.5]}
    assert artifact.resource("text", "r") == b"hello"
    tensor = artifact.object("w")
    assert isinstance(tensor, TensorObject)
    assert (tensor.shape, tensor.format, tensor.offset, tensor.bytes) == ((2,), "fp32", 0, 8)
    assert struct.unpack("<2f", artifact.object_bytes("w")) == (1.5, -0.25)
    assert isinstance(artifact.object("res"), ResourceObject)


def test_the_writer_makes_the_hand_made_bytes(tmp_path: Path) -> None:
    draft = ArtifactDraft(
        name="golden",
        components=(Component("text", {"a": [1, 2.5]}, None, {"r": "res"}),),
        objects=(TensorDraft("w", (2,), "fp32", "contiguous_le_v1"), ResourceDraft("res", 5)),
        bindings=(Binding("text.w", (2,), (BindingPart("w", 0, 2),)),),
        uses=(),
        provenance=Provenance("hand", "fp32", (SourceFile("m.safetensors", 9, SOURCE_SHA),)),
    )
    path = tmp_path / "golden.ninfer"
    with ArtifactWriter(path, draft) as writer:
        writer.write("res", 0, RESOURCE)
        writer.finish("res")
        writer.write("w", 4, TENSOR[4:])
        writer.write("w", 0, TENSOR[:4])
        writer.finish("w", QualityBlock("float32", True, 0.0, 0.0, 0.0, 0.0, 0.0))
        writer.publish()
    assert path.read_bytes() == golden_file()


def test_tensors_stand_at_multiples_of_256_in_order(small: Path) -> None:
    artifact = open_artifact(small)
    placed = [(entry.offset, entry.bytes) for entry in artifact.directory.objects]
    assert placed == [(0, 48), (256, 12), (512, 8), (768, 8), (776, 12)]


def test_parts_continue_the_payload(tmp_path: Path) -> None:
    whole, split = tmp_path / "whole.ninfer", tmp_path / "split.ninfer"
    write_small(whole)
    write_small(split, part_bytes=64)
    one, many = open_artifact(whole), open_artifact(split)
    assert [file.bytes for file in many.directory.files] == [4096, 4096, 4096, 20]
    for entry in one.directory.objects:
        assert many.object_bytes(entry.id) == one.object_bytes(entry.id)
    part = (tmp_path / "split.ninfer.part-0001").read_bytes()
    assert part[:16] == b"NINPRT\x00\x03" + struct.pack("<Q", 1)
    assert part[16:32].hex() == many.id
    assert len(part) == 4096 + 4096


@pytest.mark.parametrize(
    ("damage", "field"),
    [
        (lambda part: part.unlink(), "part-0001"),
        (lambda part: part.write_bytes(part.read_bytes()[:-1]), "part-0001 size"),
        (lambda part: part.write_bytes(part.read_bytes() + b"x"), "part-0001 size"),
        (lambda part: part.write_bytes(b"NINFER" + part.read_bytes()[6:]), "part-0001 magic"),
        (lambda part: part.write_bytes(part.read_bytes()[:20]), "part-0001"),
        (
            lambda part: part.write_bytes(
                part.with_name("s.ninfer.part-0002").read_bytes()[:16] + part.read_bytes()[16:]
            ),
            "part-0001",
        ),
        (
            lambda part: part.write_bytes(
                part.read_bytes()[:16] + bytes(16) + part.read_bytes()[32:]
            ),
            "part-0001",
        ),
    ],
    ids=["missing", "short", "long", "magic", "header", "index", "other-artifact"],
)
def test_a_bad_part_is_refused(tmp_path: Path, damage, field: str) -> None:
    path = tmp_path / "s.ninfer"
    write_small(path, part_bytes=64)
    damage(tmp_path / "s.ninfer.part-0001")
    with pytest.raises(ArtifactError) as caught:
        open_artifact(path)
    assert field in caught.value.field
    assert caught.value.hint


@pytest.mark.parametrize(
    ("content", "field", "problem"),
    [
        (b"", "x.ninfer", "the file is empty"),
        (b"NINFER\x00\x03", "x.ninfer", "shorter than a header"),
        (b"GGUF" + bytes(60), "x.ninfer magic", "expected"),
        (b"NINFER\x00\x02" + bytes(56), "x.ninfer version", "found 2"),
        (
            b"NINFER\x00\x03" + struct.pack("<Q", 1 << 60) + bytes(48),
            "x.ninfer directory size",
            "at most",
        ),
        (
            b"NINFER\x00\x03" + struct.pack("<Q", 4096) + bytes(48),
            "x.ninfer directory size",
            "do not fit",
        ),
        (
            b"NINFER\x00\x03" + struct.pack("<Q", 2) + bytes(16) + b"{}",
            "directory",
            "does not match the artifact id",
        ),
    ],
    ids=["empty", "short", "magic", "version", "huge", "truncated", "id"],
)
def test_a_bad_header_is_refused(tmp_path: Path, content, field: str, problem: str) -> None:
    path = tmp_path / "x.ninfer"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=problem) as caught:
        open_artifact(path)
    assert caught.value.field.endswith(field)


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, tmp_path / "absent.ninfer"):
        with pytest.raises(ArtifactError, match="cannot be opened"):
            open_artifact(path)


def test_truncation_anywhere_is_refused(small: Path) -> None:
    data = small.read_bytes()
    for count in (*range(64), len(data) // 2, len(data) - 13, len(data) - 1):
        small.write_bytes(data[:count])
        with pytest.raises(ArtifactError):
            open_artifact(small)


def test_a_closed_artifact_says_so_and_keeps_old_views_valid(small: Path) -> None:
    artifact = open_artifact(small)
    view = artifact.object_bytes("text.norm")
    artifact.close()
    assert struct.unpack("<3f", view) == (1.0, -2.0, 0.5)
    with pytest.raises(ArtifactError, match="closed"):
        artifact.object_bytes("text.norm")


def test_views_are_read_only(small: Path) -> None:
    view = open_artifact(small).object_bytes("text.norm")
    with pytest.raises(TypeError):
        view[0] = 1


def test_the_package_imports_no_tensor_library() -> None:
    code = (
        "import sys, ninfer_core.artifact, ninfer_core.artifact.formats;"
        "print([m for m in ('torch', 'numpy', 'rich', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
