"""Every kind of bad directory is refused with the field at fault; the id is always made to fit."""

from __future__ import annotations

import json
import struct
import warnings
from pathlib import Path

import pytest

from ninfer_core.artifact import ArtifactError, open_artifact
from ninfer_core.artifact.container import artifact_id


def set_in(*path):
    """An edit that puts the last argument at the path of the others."""
    *keys, last, value = path

    def edit(root):
        holder = root
        for key in keys:
            holder = holder[key]
        holder[last] = value

    return edit


def drop(*path):
    *keys, last = path

    def edit(root):
        holder = root
        for key in keys:
            holder = holder[key]
        del holder[last]

    return edit


def again(key: str, index: int, **changes):
    """An edit that appends a changed copy of a list member."""
    return lambda root: root[key].append(json.loads(json.dumps(root[key][index])) | changes)


CASES = {
    "root-unknown": (set_in("extra", 1), "", "unknown field 'extra'"),
    "root-missing": (drop("uses"), "", "'uses' is missing"),
    "name-empty": (set_in("metadata", "name", ""), "metadata.name", "printable"),
    "name-control": (set_in("metadata", "name", "a\nb"), "metadata.name", "printable"),
    "name-surrogate": (set_in("metadata", "name", "\ud800"), "metadata.name", "printable"),
    "name-long": (set_in("metadata", "name", "a" * 1025), "metadata.name", "printable"),
    "name-type": (set_in("metadata", "name", 3), "metadata.name", "expected a string"),
    "metadata-unknown": (set_in("metadata", "x", 1), "metadata", "unknown field 'x'"),
    "no-text": (drop("components", "text"), "components", "'text' is missing"),
    "target-self": (
        set_in("components", "mtp", "target", "mtp"),
        "components.mtp.target",
        "no other component",
    ),
    "target-dangling": (
        set_in("components", "mtp", "target", "vision"),
        "components.mtp.target",
        "no other component",
    ),
    "target-missing": (
        set_in("components", "mtp", "target", None),
        "components.mtp.target",
        "only 'text'",
    ),
    "config-type": (
        set_in("components", "text", "config", []),
        "components.text.config",
        "expected an object",
    ),
    "resource-dangling": (
        set_in("components", "text", "resources", "x", "nothing"),
        "components.text.resources.x",
        "no resource",
    ),
    "resource-is-tensor": (
        set_in("components", "text", "resources", "x", "text.norm"),
        "components.text.resources.x",
        "no resource",
    ),
    "object-kind": (set_in("objects", 0, "kind", "view"), "objects[0]", "kind must be"),
    "object-no-kind": (drop("objects", 0, "kind"), "objects[0]", "kind must be"),
    "object-unknown": (set_in("objects", 0, "pages", 1), "objects[0]", "unknown field"),
    "object-duplicate": (
        set_in("objects", 1, "id", "text.gate_up"),
        "objects[1].id",
        "occurs twice",
    ),
    "resource-format": (
        set_in("objects", 4, "format", "zip"),
        "objects[4].format",
        "raw_bytes_v1",
    ),
    "resource-shape": (set_in("objects", 4, "shape", [12]), "objects[4]", "unknown field"),
    "shape-empty": (set_in("objects", 1, "shape", []), "objects[1].shape", "dimension"),
    "shape-zero": (set_in("objects", 1, "shape", [0]), "objects[1].shape[0]", "from 1"),
    "shape-float": (set_in("objects", 1, "shape", [3.0]), "objects[1].shape[0]", "integer"),
    "shape-bool": (set_in("objects", 1, "shape", [True]), "objects[1].shape[0]", "integer"),
    "shape-rank": (set_in("objects", 1, "shape", [1] * 17), "objects[1].shape", "at most 16"),
    "shape-huge": (
        set_in("objects", 1, "shape", [1 << 63]),
        "objects[1].shape[0]",
        "integer from",
    ),
    "shape-product": (
        set_in("objects", 1, "shape", [1 << 62, 1 << 62]),
        "objects[1].bytes",
        "takes",
    ),
    "bytes-short": (set_in("objects", 1, "bytes", 8), "objects[1].bytes", "takes 12"),
    "layout": (set_in("objects", 1, "layout", "tiled"), "objects[1].layout", "no layout of fp32"),
    "sha-short": (set_in("objects", 1, "sha256", "ab"), "objects[1].sha256", "64"),
    "sha-upper": (set_in("objects", 1, "sha256", "AB" * 32), "objects[1].sha256", "64"),
    "offset-unaligned": (set_in("objects", 1, "offset", 264), "objects[1].offset", "256"),
    "offset-overlap": (set_in("objects", 1, "offset", 0), "objects[1].offset", "predecessor"),
    "offset-order": (set_in("objects", 1, "offset", 768), "objects[2].offset", "predecessor"),
    "offset-gap": (set_in("objects", 3, "offset", 8192), "objects[3].offset", "unused"),
    "offset-outside": (set_in("objects", 4, "offset", 780), "objects[4].offset", "its file at"),
    "offset-negative": (set_in("objects", 1, "offset", -256), "objects[1].offset", "from 0"),
    "quality-missing": (drop("objects", 0, "quality"), "objects[0]", "'quality' is missing"),
    "quality-field": (
        drop("objects", 0, "quality", "finite"),
        "objects[0].quality",
        "'finite' is missing",
    ),
    "quality-share": (
        set_in("objects", 0, "quality", "zero_row_share", 1.5),
        "objects[0].quality.zero_row_share",
        "from 0.0 to 1.0",
    ),
    "quality-flag": (
        set_in("objects", 0, "quality", "finite", 1),
        "objects[0].quality.finite",
        "true or false",
    ),
    "binding-duplicate": (again("bindings", 0), "bindings[6].parameter", "bound twice"),
    "binding-component": (
        set_in("bindings", 0, "parameter", "vision.gate"),
        "bindings[0].parameter",
        "no declared component",
    ),
    "binding-empty": (set_in("bindings", 3, "parts", []), "bindings[3].parts", "is empty"),
    "binding-dangling": (
        set_in("bindings", 0, "parts", 0, "object", "x"),
        "bindings[0].parts[0].object",
        "no tensor",
    ),
    "binding-resource": (
        set_in("bindings", 0, "parts", 0, "object", "resource/tokenizer.json"),
        "bindings[0].parts[0].object",
        "no tensor",
    ),
    "range-outside": (
        set_in("bindings", 0, "parts", 0, "first", 17),
        "bindings[0].parts[0]",
        "ends at element 25 of 24",
    ),
    "range-empty": (
        set_in("bindings", 0, "parts", 0, "count", 0),
        "bindings[0].parts[0].count",
        "from 1",
    ),
    "range-twice": (
        set_in(
            *("bindings", 0, "parts"),
            [
                {"object": "text.gate_up", "first": 0, "count": 5},
                {"object": "text.gate_up", "first": 4, "count": 3},
            ],
        ),
        "bindings[0].parts",
        "same elements twice",
    ),
    "binding-shape": (
        set_in("bindings", 0, "shape", [2, 5]),
        "bindings[0].shape",
        "10 elements, 8 are bound",
    ),
    "use-dangling": (
        set_in("uses", 0, "parameter", "text.x"),
        "uses[0].parameter",
        "bound nowhere",
    ),
    "use-duplicate": (again("uses", 0), "uses[2]", "occurs twice"),
    "use-policy": (set_in("uses", 0, "activation", "A8"), "uses[0].activation", "A16Only"),
    "use-auxiliary": (
        set_in("uses", 0, "auxiliaries", "divisor", "resource/tokenizer.json"),
        "uses[0].auxiliaries.divisor",
        "no tensor",
    ),
    "unreferenced": (drop("bindings", 4), "objects[2]", "nothing refers to 'text.ids'"),
    "binding-count": (
        set_in("bindings", 5, "parts", 0, {"object": "text.ids", "first": 0, "count": 2}),
        "bindings[5].shape",
        "4 elements, 2 are bound",
    ),
    "files-none": (set_in("files", []), "files", "lists no file"),
    "files-many": (set_in("files", [{"bytes": 0}] * 10001), "files", "at most 10000"),
    "files-unaligned": (
        set_in("files", [{"bytes": 788}, {"bytes": 0}]),
        "files[0].bytes",
        "multiple of 4096",
    ),
    "files-short": (set_in("files", 0, "bytes", 700), "objects[3].offset", "its file at 700"),
    "files-long": (set_in("files", 0, "bytes", 789), "changed.ninfer size", "expected"),
    "files-gap": (set_in("files", 0, "bytes", 1 << 40), "files", "unused"),
    "files-missing-part": (
        set_in("files", [{"bytes": 4096}, {"bytes": 0}]),
        "changed.ninfer size",
        "expected",
    ),
    "provenance": (drop("provenance", "recipe"), "provenance", "'recipe' is missing"),
    "source-sha": (
        set_in("provenance", "sources", 0, "sha256", "zz" * 32),
        "provenance.sources[0].sha256",
        "hexadecimal",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_directory_is_refused(redo, case: str) -> None:
    edit, field, problem = CASES[case]
    with pytest.raises(ArtifactError) as caught:
        open_artifact(redo(edit))
    assert caught.value.field == field
    assert problem in caught.value.problem
    assert caught.value.hint


def test_private_data_of_an_optional_component_may_not_hide_in_a_shared_object(redo) -> None:
    def edit(root):
        root["bindings"][1]["parts"][0] = {"object": "text.gate_up", "first": 8, "count": 12}
        root["bindings"][1]["shape"] = [3, 4]
        part = {"object": "text.gate_up", "first": 20, "count": 4}
        root["bindings"].append({"parameter": "mtp.x", "shape": [4], "parts": [part]})

    with pytest.raises(ArtifactError, match="private data of the components mtp and text"):
        open_artifact(redo(edit))


def test_an_optional_component_may_share_what_text_binds(redo) -> None:
    part = {"object": "text.gate_up", "first": 4, "count": 8}
    shared = {"parameter": "mtp.x", "shape": [8], "parts": [part]}
    artifact = open_artifact(redo(lambda root: root["bindings"].append(shared)))
    assert [binding.parameter for binding in artifact.bindings("mtp")] == ["mtp.fc", "mtp.x"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b'{"a":1,"a":2}', "'a' occurs twice"),
        (b'{"a":NaN}', "not a finite number"),
        (b'{"a":1e999}', "not a finite number"),
        (b'{"a":' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[" * 65 + b"]" * 65, "nests deeper than 64"),
        (b"[]", "expected an object"),
        (b"null", "expected an object, found null"),
    ],
)
def test_bad_json_is_refused(tmp_path: Path, text: bytes, problem: str) -> None:
    path = tmp_path / "x.ninfer"
    head = b"NINFER\x00\x03" + struct.pack("<Q", len(text)) + artifact_id(text)
    path.write_bytes(head + text)
    with pytest.raises(ArtifactError, match=problem):
        open_artifact(path)


def test_an_unknown_format_is_carried_until_somebody_uses_it(redo) -> None:
    path = redo(set_in("objects", 1, "format", "q9_g64_fp16"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        artifact = open_artifact(path)
    assert struct.unpack("<3f", artifact.object_bytes("text.norm")) == (1.0, -2.0, 0.5)


def test_the_error_is_one_line_with_field_and_mend(redo) -> None:
    with pytest.raises(ArtifactError) as caught:
        open_artifact(redo(set_in("objects", 1, "bytes", 8)))
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("objects[1].bytes: 8, but fp32 of shape [3] takes 12 (")
    assert "convert it again" in line
