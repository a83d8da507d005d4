"""Open a ``.ninfer`` artifact: memory-mapped files, every bound checked before it is used."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ninfer_core.artifact.buffers import sha256_hex
from ninfer_core.artifact.container import (
    DAMAGED,
    ENTRY_MAGIC,
    HEADER_BYTES,
    MAX_DIRECTORY_BYTES,
    PAGE_BYTES,
    PART_MAGIC,
    artifact_id,
    parse_header,
    part_path,
    payload_start,
)
from ninfer_core.artifact.directory import parse_directory
from ninfer_core.artifact.errors import ArtifactError
from ninfer_core.artifact.files import map_file
from ninfer_core.artifact.formats import FormatRegistry, builtin_registry
from ninfer_core.artifact.model import (
    Binding,
    Component,
    Directory,
    ResourceObject,
    StoredObject,
    TensorObject,
    Use,
)
from ninfer_core.artifact.validate import component_of, validate_directory
from ninfer_core.closing import Closing

_HASH_THREADS = min(8, os.cpu_count() or 1)


class _Span(NamedTuple):
    """The payload bytes of one file: ``first`` counts through all files."""

    first: int
    data: memoryview


class Artifact(Closing):
    """A validated artifact whose bytes stay in the files until somebody reads them.

    Reads are zero-copy views of read-only maps. Opening checks framing, bounds, references and the
    content id of the directory; the hash of an object is checked when a binder or a reader of
    resources first takes it, and `verify` checks them all. ``formats`` are the weight
    formats that it was opened with; who reads its tensors uses them, unless given others.
    """

    def __init__(
        self,
        path: Path,
        directory: Directory,
        identity: bytes,
        spans: list[_Span],
        formats: FormatRegistry,
    ) -> None:
        self.path = path
        self.formats = formats
        self.directory = directory
        self.id = identity.hex()
        self._spans = spans
        self._intact: set[str] = set()
        self._ahead: dict[str, Future[str]] = {}
        self._objects = {entry.id: entry for entry in directory.objects}
        self._bindings = {binding.parameter: binding for binding in directory.bindings}
        self._components = {component.name: component for component in directory.components}
        self._uses = {(use.parameter, use.input): use for use in directory.uses}

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def architecture(self) -> str | None:
        """Class name of the architecture, from the text component's configuration."""
        names = self.component("text").config.get("architectures")
        first = names[0] if isinstance(names, list) and names else None
        return first if isinstance(first, str) else None

    @property
    def component_names(self) -> tuple[str, ...]:
        return tuple(self._components)

    def component(self, name: str) -> Component:
        found = self._components.get(name)
        if found is None:
            carried = ", ".join(self._components)
            raise ArtifactError(
                f"component {name!r}",
                f"is not in {self.path.name}, which carries {carried}",
                f"convert the checkpoint again with --components {carried.replace(' ', '')},{name}",
            )
        return found

    def object(self, object_id: str) -> StoredObject:
        found = self._objects.get(object_id)
        if found is None:
            raise ArtifactError(f"object {object_id!r}", "does not exist", "name an existing one")
        return found

    def tensor(self, object_id: str) -> TensorObject:
        found = self.object(object_id)
        if not isinstance(found, TensorObject):
            raise ArtifactError(f"object {object_id!r}", "is a resource", "name a tensor")
        return found

    def binding(self, parameter: str) -> Binding | None:
        return self._bindings.get(parameter)

    def bindings(self, component: str) -> Iterator[Binding]:
        """The bindings of one component's parameters."""
        bindings = self.directory.bindings
        return (entry for entry in bindings if component_of(entry.parameter) == component)

    def use(self, parameter: str, input_name: str) -> Use | None:
        return self._uses.get((parameter, input_name))

    def object_bytes(self, object_id: str) -> memoryview:
        """The stored bytes of an object as a read-only view of the mapped file."""
        entry = self.object(object_id)
        if not self._spans:
            raise ArtifactError(self.path.name, "is closed", "open the artifact again")
        span = self._spans[bisect_right(self._spans, entry.offset, key=_span_first) - 1]
        start = entry.offset - span.first
        return span.data[start : start + entry.bytes]

    def intact_bytes(self, object_id: str) -> memoryview:
        """:meth:`object_bytes`, checked once against the object's SHA-256.

        Raises `ArtifactError` when the file was damaged after it was written.
        """
        data = self.object_bytes(object_id)
        if object_id not in self._intact:
            ahead = self._ahead.pop(object_id, None)
            digest = sha256_hex(data) if ahead is None else ahead.result()
            if digest != self.object(object_id).sha256:
                raise ArtifactError(
                    f"object {object_id!r}", "does not match its recorded SHA-256", DAMAGED
                )
            self._intact.add(object_id)
        return data

    @contextmanager
    def hashing_ahead(self, components: Iterable[str]) -> Iterator[None]:
        """Hash what ``components`` bind in the background, in order, while the body binds it.

        :meth:`intact_bytes` then waits for the hash of one object instead of computing it. Hashes
        of objects that the body never takes are dropped.
        """
        bound = (part.object for c in components for b in self.bindings(c) for part in b.parts)
        wanted = [object_id for object_id in dict.fromkeys(bound) if object_id not in self._intact]
        with ThreadPoolExecutor(_HASH_THREADS, "ninfer-hash") as pool:
            self._ahead = {o: pool.submit(sha256_hex, self.object_bytes(o)) for o in wanted}
            try:
                yield
            finally:
                for hashed in self._ahead.values():
                    hashed.cancel()
                self._ahead = {}

    def resource(self, component: str, name: str) -> bytes | None:
        """A copy of a component's resource (such as ``tokenizer.json``), or None without one."""
        object_id = self.component(component).resources.get(name)
        if object_id is None or not isinstance(self.object(object_id), ResourceObject):
            return None
        return bytes(self.intact_bytes(object_id))

    def payload_spans(self) -> Iterator[tuple[int, memoryview]]:
        """(first payload offset, bytes) of each file, in order."""
        return ((span.first, span.data) for span in self._spans)

    def close(self) -> None:
        """Unmap the files; views handed out before keep their bytes valid."""
        for span in self._spans:
            span.data.release()
        self._spans = []


def open_artifact(path: str | os.PathLike[str], formats: FormatRegistry | None = None) -> Artifact:
    """Map and validate the artifact at ``path``; raises `ArtifactError` for anything amiss.

    ``formats`` (the built-in ones when None) check the sizes of their tensors now, and decode them
    later.
    """
    entry_path = Path(path)
    data = map_file(entry_path, "give the path of a readable .ninfer file")
    header = parse_header(bytes(data[:HEADER_BYTES]), ENTRY_MAGIC, entry_path.name)
    encoded = _directory_bytes(entry_path, data, header.number)
    if artifact_id(encoded) != header.artifact_id:
        raise ArtifactError("directory", "does not match the artifact id in the header", DAMAGED)
    directory = parse_directory(encoded)
    known = formats or builtin_registry()
    validate_directory(directory, known)
    payload = _payload(entry_path, data, payload_start(header.number), directory.files[0].bytes)
    spans = [_Span(0, payload)]
    for index, file in enumerate(directory.files[1:], start=1):
        first = spans[-1].first + len(spans[-1].data)
        spans.append(_Span(first, _part(entry_path, index, header.artifact_id, file.bytes)))
    return Artifact(entry_path, directory, header.artifact_id, spans, known)


def _span_first(span: _Span) -> int:
    return span.first


def _directory_bytes(path: Path, data: memoryview, count: int) -> bytes:
    if count > MAX_DIRECTORY_BYTES:
        raise ArtifactError(
            f"{path.name} directory size",
            f"{count} bytes, at most {MAX_DIRECTORY_BYTES} are allowed",
            DAMAGED,
        )
    if HEADER_BYTES + count > len(data):
        raise ArtifactError(
            f"{path.name} directory size", f"{count} bytes do not fit in the file", DAMAGED
        )
    return bytes(data[HEADER_BYTES : HEADER_BYTES + count])


def _part(entry: Path, index: int, identity: bytes, count: int) -> memoryview:
    path = part_path(entry, index)
    data = map_file(path, f"put all parts of {entry.name} beside it")
    header = parse_header(bytes(data[:HEADER_BYTES]), PART_MAGIC, path.name)
    if header.number != index:
        raise ArtifactError(path.name, f"says it is part {header.number}", DAMAGED)
    if header.artifact_id != identity:
        raise ArtifactError(
            path.name, "belongs to another artifact", f"put the parts of {entry.name} beside it"
        )
    return _payload(path, data, PAGE_BYTES, count)


def _payload(path: Path, data: memoryview, start: int, count: int) -> memoryview:
    if start + count != len(data):
        raise ArtifactError(
            f"{path.name} size", f"{len(data)} bytes, expected {start + count}", DAMAGED
        )
    return data[start:]
