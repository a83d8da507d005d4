"""The writer: bounded, deterministic, and published whole or not at all."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ninfer_core.artifact import (
    ArtifactError,
    ArtifactWriter,
    QualityBlock,
    ResourceDraft,
    open_artifact,
    verify,
)
from ninfer_core.artifact.model import Binding, BindingPart, Component
from ninfer_core.testing.artifact_mutations import (
    SMALL_PAYLOAD,
    fill_small,
    small_draft,
    write_small,
)

SOUND = QualityBlock("bfloat16", True, 0.0, 0.0, 0.0, 0.0, 0.0)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_was_written_is_read_and_verified(small: Path) -> None:
    artifact = open_artifact(small)
    for object_id, data in SMALL_PAYLOAD.items():
        assert artifact.object_bytes(object_id) == data
    assert verify(artifact).ok
    assert names(small.parent) == ["small.ninfer"]


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.ninfer", tmp_path / "b.ninfer"
    assert write_small(first) == write_small(second)
    assert first.read_bytes() == second.read_bytes()


def test_the_id_follows_the_contents(tmp_path: Path) -> None:
    draft = replace(small_draft(), name="other")
    with ArtifactWriter(tmp_path / "b.ninfer", draft) as writer:
        fill_small(writer)
        assert writer.publish() != write_small(tmp_path / "a.ninfer")


def test_nothing_is_left_when_the_writer_is_left_early(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "a.ninfer", small_draft(), part_bytes=64) as writer:
        writer.write("text.norm", 0, SMALL_PAYLOAD["text.norm"])
        assert len(names(tmp_path)) == 4
    assert names(tmp_path) == []


def test_an_existing_file_is_never_replaced_unasked(small: Path) -> None:
    before = small.read_bytes()
    with pytest.raises(ArtifactError, match="already exists"):
        write_small(small)
    assert small.read_bytes() == before
    assert names(small.parent) == ["small.ninfer"]


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.ninfer"
    with ArtifactWriter(path, small_draft(), part_bytes=64) as writer:
        fill_small(writer)
        path.write_text("mine")
        with pytest.raises(ArtifactError, match="already exists"):
            writer.publish()
    assert path.read_text() == "mine"
    assert names(tmp_path) == ["a.ninfer"]


def test_overwriting_replaces_the_entry_and_drops_stale_parts(tmp_path: Path) -> None:
    path = tmp_path / "a.ninfer"
    write_small(path, part_bytes=64)
    assert len(names(tmp_path)) == 4
    write_small(path, overwrite=True)
    assert names(tmp_path) == ["a.ninfer"]
    assert verify(open_artifact(path)).ok


def test_without_hard_links_publication_still_refuses_to_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: object, target: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "a.ninfer"
    write_small(path, part_bytes=64)
    assert verify(open_artifact(path)).ok
    assert len(names(tmp_path)) == 4
    with pytest.raises(ArtifactError, match="already exists"):
        write_small(path)


def test_parts_are_published_before_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    link = os.link
    monkeypatch.setattr(os, "link", lambda a, b: (order.append(Path(b).name), link(a, b)))
    write_small(tmp_path / "a.ninfer", part_bytes=64)
    assert order == [f"a.ninfer.part-000{i}" for i in (3, 2, 1)] + ["a.ninfer"]


def test_a_failure_between_parts_and_entry_withdraws_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def fail_at_entry(source: object, target: object) -> None:
        if str(target).endswith(".ninfer"):
            raise KeyboardInterrupt
        link(str(source), str(target))

    monkeypatch.setattr(os, "link", fail_at_entry)
    with pytest.raises(KeyboardInterrupt):
        write_small(tmp_path / "a.ninfer", part_bytes=64)
    assert names(tmp_path) == []


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be written") as caught:
        write_small(tmp_path / "absent" / "a.ninfer")
    assert str(tmp_path / "absent" / "a.ninfer") == caught.value.field


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ArtifactError, match="No space left"):
        write_small(tmp_path / "a.ninfer")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("misuse", "problem"),
    [
        (lambda w: w.write("text.norm", 8, b"12345"), "a write ends at 13"),
        (lambda w: w.finish("text.norm", SOUND), "0 of 12 bytes were written"),
        (lambda w: (w.write("text.norm", 0, bytes(12)), w.finish("text.norm")), "no quality"),
        (lambda w: w.publish(), "was not written"),
    ],
)
def test_misuse_is_refused(tmp_path: Path, misuse, problem: str) -> None:
    with (
        pytest.raises(ArtifactError, match=problem),
        ArtifactWriter(tmp_path / "a.ninfer", small_draft()) as writer,
    ):
        misuse(writer)
    assert names(tmp_path) == []


def test_a_quality_block_too_long_for_its_room_is_refused(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "a.ninfer", small_draft()) as writer:
        fill_small(writer, source_dtype="x" * 1000)
        with pytest.raises(ArtifactError, match="outgrew its room"):
            writer.publish()


def test_a_draft_that_no_reader_would_take_fails_before_writing(tmp_path: Path) -> None:
    draft = small_draft()
    orphan = replace(draft, objects=(*draft.objects, ResourceDraft("orphan", 1)))
    unknown = replace(draft, objects=(replace(draft.objects[0], format="q9"), *draft.objects[1:]))
    unnamed = replace(draft, name="a\tb")
    for bad, problem in ((orphan, "orphan"), (unknown, "q9"), (unnamed, "printable")):
        with pytest.raises(ArtifactError, match=problem):
            ArtifactWriter(tmp_path / "a.ninfer", bad)
    with pytest.raises(ArtifactError, match="raise the part limit"):
        ArtifactWriter(tmp_path / "a.ninfer", draft, part_bytes=47)
    assert names(tmp_path) == []


def test_an_empty_resource_is_carried(tmp_path: Path) -> None:
    draft = small_draft()
    text = Component("text", {}, None, {"e": "e", "tokenizer.json": "resource/tokenizer.json"})
    more = replace(
        draft,
        components=(text, draft.components[1]),
        objects=(*draft.objects, ResourceDraft("e", 0)),
    )
    path = tmp_path / "a.ninfer"
    with ArtifactWriter(path, more) as writer:
        fill_small(writer)
        writer.finish("e")
        writer.publish()
    assert open_artifact(path).resource("text", "e") == b""


def test_ordered_parts_may_come_from_several_objects(tmp_path: Path) -> None:
    parts = (BindingPart("text.norm", 1, 2), BindingPart("text.ids", 0, 1))
    draft = small_draft()
    mixed = replace(draft, bindings=(*draft.bindings, Binding("text.mixed", (3,), parts)))
    path = tmp_path / "a.ninfer"
    with ArtifactWriter(path, mixed) as writer:
        fill_small(writer)
        writer.publish()
    binding = open_artifact(path).binding("text.mixed")
    assert binding is not None
    assert binding.parts == parts
