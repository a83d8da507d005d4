"""Where a writer puts each object: offsets, files, and the room its directory takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ninfer_core.artifact.container import PAGE_BYTES, TENSOR_ALIGNMENT, align_up
from ninfer_core.artifact.directory import encode_directory, parse_directory
from ninfer_core.artifact.errors import ArtifactError
from ninfer_core.artifact.formats import FormatRegistry, storage_bytes
from ninfer_core.artifact.model import (
    Binding,
    Component,
    Directory,
    PayloadFile,
    Provenance,
    QualityBlock,
    ResourceObject,
    StoredObject,
    TensorObject,
    Use,
)
from ninfer_core.artifact.validate import validate_directory


@dataclass(frozen=True, slots=True)
class TensorDraft:
    """A tensor to be written: its size follows from format, layout and shape."""

    id: str
    shape: tuple[int, ...]
    format: str
    layout: str


@dataclass(frozen=True, slots=True)
class ResourceDraft:
    id: str
    bytes: int


ObjectDraft: TypeAlias = TensorDraft | ResourceDraft


@dataclass(frozen=True, slots=True)
class ArtifactDraft:
    """Everything of an artifact that is known before its payload is written."""

    name: str
    components: tuple[Component, ...]
    objects: tuple[ObjectDraft, ...]
    bindings: tuple[Binding, ...]
    uses: tuple[Use, ...]
    provenance: Provenance


# The longest text that each value can take, so that the room reserved for the directory suffices.
_WIDEST = 2.2250738585072014e-308
_PENDING_QUALITY = QualityBlock("x" * 32, False, *(_WIDEST,) * 5)
_PENDING_SHA256 = "0" * 64


def place(draft: ArtifactDraft, formats: FormatRegistry, part_bytes: int) -> Directory:
    """The directory of ``draft`` with offsets and files, hashes and quality still pending.

    A file takes at most ``part_bytes`` of payload. Raises `ArtifactError` where a reader would.
    """
    sizes = [_size(entry, formats) for entry in draft.objects]
    offsets, files = _offsets(draft.objects, sizes, part_bytes)
    objects = map(_pending, draft.objects, offsets, sizes)
    directory = Directory(
        name=draft.name,
        components=draft.components,
        objects=tuple(objects),
        bindings=draft.bindings,
        uses=draft.uses,
        files=files,
        provenance=draft.provenance,
    )
    validate_directory(parse_directory(encode_directory(directory)), formats)
    return directory


def complete(
    directory: Directory, hashes: Mapping[str, str], qualities: Mapping[str, QualityBlock]
) -> Directory:
    """``directory`` with the SHA-256 of every object and the quality block of every tensor."""
    objects = tuple(_completed(entry, hashes, qualities) for entry in directory.objects)
    return replace(directory, objects=objects)


def _size(entry: ObjectDraft, formats: FormatRegistry) -> int:
    if isinstance(entry, ResourceDraft):
        return entry.bytes
    weight_format = formats.get(entry.format, f"object {entry.id!r}")
    return storage_bytes(weight_format, entry.shape, entry.layout)


def _offsets(
    objects: Sequence[ObjectDraft], sizes: Sequence[int], part_bytes: int
) -> tuple[list[int], tuple[PayloadFile, ...]]:
    offsets: list[int] = []
    files: list[PayloadFile] = []
    file_start = end = 0
    for entry, size in zip(objects, sizes, strict=True):
        if size > part_bytes:
            raise ArtifactError(
                f"object {entry.id!r}",
                f"takes {size} bytes, a file at most {part_bytes}",
                "raise the part limit",
            )
        offset = align_up(end, TENSOR_ALIGNMENT if isinstance(entry, TensorDraft) else 1)
        if offset + size - file_start > part_bytes:
            files.append(PayloadFile(align_up(end - file_start, PAGE_BYTES)))
            offset = file_start = file_start + files[-1].bytes
        offsets.append(offset)
        end = offset + size
    files.append(PayloadFile(end - file_start))
    return offsets, tuple(files)


def _pending(entry: ObjectDraft, offset: int, size: int) -> StoredObject:
    if isinstance(entry, ResourceDraft):
        return ResourceObject(entry.id, offset, size, _PENDING_SHA256)
    stored = (entry.id, entry.shape, entry.format, entry.layout, offset, size)
    return TensorObject(*stored, _PENDING_SHA256, _PENDING_QUALITY)


def _completed(
    entry: StoredObject, hashes: Mapping[str, str], qualities: Mapping[str, QualityBlock]
) -> StoredObject:
    if isinstance(entry, ResourceObject):
        return replace(entry, sha256=hashes[entry.id])
    return replace(entry, sha256=hashes[entry.id], quality=qualities[entry.id])
