"""Write a ``.ninfer`` artifact: streamed into temporary files, published whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from ninfer_core.artifact.buffers import Bytes
from ninfer_core.artifact.container import (
    DEFAULT_PART_BYTES,
    ENTRY_MAGIC,
    HEADER_BYTES,
    MAX_DIRECTORY_BYTES,
    PAGE_BYTES,
    PART_MAGIC,
    Header,
    artifact_id,
    part_path,
    payload_start,
)
from ninfer_core.artifact.directory import encode_directory
from ninfer_core.artifact.errors import ArtifactError
from ninfer_core.artifact.formats import FormatRegistry, builtin_registry
from ninfer_core.artifact.model import Directory, QualityBlock, StoredObject, TensorObject
from ninfer_core.artifact.placement import ArtifactDraft, complete, place
from ninfer_core.artifact.publish import publish_files, refuse_existing

_HASH_BYTES = 1 << 20


class ArtifactWriter:
    """Writes the objects of a draft in any order and publishes them under ``path``.

    Use as a context manager: leaving it without `publish` removes everything. Memory stays
    bounded: bytes go to the file at once, hashes are computed over what stands there.
    Equal drafts, bytes and quality blocks give equal files.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        draft: ArtifactDraft,
        *,
        formats: FormatRegistry | None = None,
        overwrite: bool = False,
        part_bytes: int = DEFAULT_PART_BYTES,
    ) -> None:
        self.path = Path(path)
        self._overwrite = overwrite
        self._directory = place(draft, formats or builtin_registry(), part_bytes)
        self._objects = {entry.id: entry for entry in self._directory.objects}
        self._room = _directory_room(self.path, self._directory)
        self._written: dict[str, int] = dict.fromkeys(self._objects, 0)
        self._hashes: dict[str, str] = {}
        self._qualities: dict[str, QualityBlock] = {}
        self._targets = _target_paths(self.path, self._directory)
        if not overwrite:
            refuse_existing(self._targets)
        self._temporary, self._descriptors = self._create_files()

    @property
    def file_count(self) -> int:
        return len(self._targets)

    @property
    def file_bytes(self) -> int:
        """Size of all files together."""
        files = self._directory.files
        return sum(self._payload_start(i) + file.bytes for i, file in enumerate(files))

    def write(self, object_id: str, offset: int, data: Bytes) -> None:
        """Put ``data`` at byte ``offset`` of an object; each byte is written once."""
        entry, view = self._objects[object_id], memoryview(data).cast("B")
        if offset + len(view) > entry.bytes:
            raise ArtifactError(
                f"object {object_id!r}",
                f"has {entry.bytes} bytes, a write ends at {offset + len(view)}",
                "write what the draft declares",
            )
        descriptor, start = self._locate(entry)
        with self._io_errors():
            _write_all(descriptor, view, start + offset)
        self._written[object_id] += len(view)

    def finish(self, object_id: str, quality: QualityBlock | None = None) -> None:
        """Close an object that is wholly written; tensors state their quality."""
        entry = self._objects[object_id]
        if self._written[object_id] != entry.bytes:
            raise ArtifactError(
                f"object {object_id!r}",
                f"{self._written[object_id]} of {entry.bytes} bytes were written",
                "write the whole object before it is finished",
            )
        if isinstance(entry, TensorObject):
            if quality is None:
                raise ArtifactError(f"object {object_id!r}", "has no quality block", "measure it")
            self._qualities[object_id] = quality
        descriptor, start = self._locate(entry)
        with self._io_errors():
            self._hashes[object_id] = _hash_range(descriptor, start, entry.bytes)

    def publish(self) -> str:
        """Make the artifact appear under its path; returns its id in hexadecimal.

        Continuation parts appear before the entry file. An existing file is replaced only with
        ``overwrite``.
        """
        unfinished = [object_id for object_id in self._objects if object_id not in self._hashes]
        if unfinished:
            raise ArtifactError(f"object {unfinished[0]!r}", "was not written", "finish it first")
        encoded = encode_directory(complete(self._directory, self._hashes, self._qualities))
        if len(encoded) > self._room:
            raise ArtifactError("directory", "outgrew its room", "shorten the source dtype names")
        identity = artifact_id(encoded)
        with self._io_errors():
            self._write_headers(encoded.ljust(self._room), identity)
            for descriptor in self._descriptors:
                os.fsync(descriptor)
            publish_files(self._temporary, self._targets, overwrite=self._overwrite)
        self._close()
        return identity.hex()

    def abandon(self) -> None:
        """Remove the temporary files; does nothing after `publish`."""
        self._close()
        for path in self._temporary:
            path.unlink(missing_ok=True)

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()

    def _create_files(self) -> tuple[list[Path], list[int]]:
        token = secrets.token_hex(6)
        paths = [target.with_name(f".{target.name}.{token}.tmp") for target in self._targets]
        descriptors: list[int] = []
        try:
            with self._io_errors():
                for index, path in enumerate(paths):
                    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
                    descriptors.append(os.open(path, flags, 0o666))
                    size = self._payload_start(index) + self._directory.files[index].bytes
                    os.ftruncate(descriptors[-1], size)
        except BaseException:
            for descriptor, path in zip(descriptors, paths, strict=False):
                os.close(descriptor)
                path.unlink()
            raise
        return paths, descriptors

    def _payload_start(self, index: int) -> int:
        return payload_start(self._room) if index == 0 else PAGE_BYTES

    def _locate(self, entry: StoredObject) -> tuple[int, int]:
        """(descriptor, position in its file) of an object."""
        firsts = [0]
        for file in self._directory.files[:-1]:
            firsts.append(firsts[-1] + file.bytes)
        index = bisect_right(firsts, entry.offset) - 1
        return self._descriptors[index], self._payload_start(index) + entry.offset - firsts[index]

    def _write_headers(self, directory: bytes, identity: bytes) -> None:
        header = Header(len(directory), identity).pack(ENTRY_MAGIC)
        _write_all(self._descriptors[0], memoryview(header + directory), 0)
        for index, descriptor in enumerate(self._descriptors[1:], start=1):
            part = Header(index, identity).pack(PART_MAGIC)
            _write_all(descriptor, memoryview(part), 0)

    def _close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    @contextlib.contextmanager
    def _io_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ArtifactError(
                str(self.path),
                f"cannot be written ({error.strerror})",
                "give a path in an existing writable directory with enough room",
            ) from error


def _target_paths(entry: Path, directory: Directory) -> list[Path]:
    return [entry, *(part_path(entry, index) for index in range(1, len(directory.files)))]


def _directory_room(path: Path, pending: Directory) -> int:
    room = payload_start(len(encode_directory(pending))) - HEADER_BYTES
    if room > MAX_DIRECTORY_BYTES:
        raise ArtifactError(
            str(path),
            f"needs a directory of {room} bytes, at most {MAX_DIRECTORY_BYTES} are allowed",
            "group tensors into fewer objects",
        )
    return room


def _write_all(descriptor: int, data: memoryview, position: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, position)
        data, position = data[count:], position + count


def _hash_range(descriptor: int, start: int, count: int) -> str:
    digest = hashlib.sha256()
    end = start + count
    while start < end:
        block = os.pread(descriptor, min(_HASH_BYTES, end - start), start)
        if not block:
            raise OSError(None, "the temporary file was truncated by somebody else")
        digest.update(block)
        start += len(block)
    return digest.hexdigest()
