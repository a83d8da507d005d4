"""A Hugging Face checkpoint directory: configuration, weight files, tokenizer resources."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ninfer_core.artifact.convert.safetensors import SourceTensor, read_safetensors
from ninfer_core.artifact.errors import ConversionError
from ninfer_core.artifact.fields import Node, parse_json
from ninfer_core.artifact.model import SourceFile

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TEMPLATE = "chat_template.jinja"
RESOURCES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_MEND = "give a Hugging Face checkpoint directory with config.json and safetensors weights"
_HASH_BYTES = 8 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint; tensors stay in their mapped files until they are read.

    ``resources`` holds the bytes of the resource files that exist, by their usual names.
    """

    directory: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, SourceTensor]
    weight_files: tuple[Path, ...]
    resources: Mapping[str, bytes]

    @property
    def source_files(self) -> tuple[Path, ...]:
        """Configuration and weights."""
        return (self.directory / "config.json", *self.weight_files)

    def hash_sources(self, progress: Callable[[str, int], None]) -> tuple[SourceFile, ...]:
        """Name, size and SHA-256 of config and weights; ``progress`` gets (name, bytes hashed)."""
        return tuple(_hash_file(path, progress) for path in self.source_files)

    def among(self, known: Mapping[str, T], place: str, noun: str) -> T:
        """What ``known`` has under the first class name of the configuration that stands there.

        ``place`` and ``noun`` are what errors call config.json and the directory. Raises
        `ArtifactError` naming the classes.
        """
        mend = f"give a {noun} of a known class or install the plug-in that provides it"
        listed = Node(dict(self.config), place, mend).need("architectures")
        names = [node.text() for node in listed.elements()]
        for name in names:
            if name in known:
                return known[name]
        given = ", ".join(names) or "an empty list"
        return listed.fail(f"{given} is unknown; known are {', '.join(known) or 'none'}")


def open_checkpoint(directory: Path) -> Checkpoint:
    """Read configuration, resources and tensor headers; `ArtifactError` for an unsound one."""
    if not directory.is_dir():
        raise ConversionError(str(directory), "is no directory", _MEND)
    config = _read_json(directory / "config.json")
    files = _weight_files(directory)
    return Checkpoint(
        directory=directory,
        config=config.mapping(),
        tensors=_tensors(files),
        weight_files=files,
        resources=_resources(directory),
    )


def _read_json(path: Path) -> Node:
    if not path.is_file():
        raise ConversionError(str(path), "is missing", _MEND)
    mend = f"mend {path.name}"
    return Node(parse_json(path.read_bytes(), str(path), mend), path.name, mend)


def _weight_files(directory: Path) -> tuple[Path, ...]:
    """The shards that the index names, else the only safetensors file."""
    if (directory / INDEX).is_file():
        return _shards(directory)
    if (directory / SINGLE).is_file():
        return (directory / SINGLE,)
    found = sorted(directory.glob("*.safetensors"))
    if len(found) != 1:
        problem = f"holds {len(found)} safetensors files and no {INDEX}"
        raise ConversionError(str(directory), problem, _MEND)
    return (found[0],)


def _shards(directory: Path) -> tuple[Path, ...]:
    names = set()
    for _, node in _read_json(directory / INDEX).need("weight_map").members():
        name = node.text()
        if Path(name).name != name:
            node.fail(f"{name!r} is no plain file name")
        names.add(name)
    missing = sorted(name for name in names if not (directory / name).is_file())
    if missing or not names:
        problem = f"names {missing[0]}, which is missing" if missing else "names no file"
        raise ConversionError(INDEX, problem, "download the checkpoint again")
    return tuple(directory / name for name in sorted(names))


def _tensors(files: tuple[Path, ...]) -> dict[str, SourceTensor]:
    tensors: dict[str, SourceTensor] = {}
    for path in files:
        for tensor in read_safetensors(path):
            if tensor.name in tensors:
                raise ConversionError(
                    tensor.name,
                    f"stands in {tensors[tensor.name].file} and in {tensor.file}",
                    "remove one of the files",
                )
            tensors[tensor.name] = tensor
    return tensors


def _resources(directory: Path) -> dict[str, bytes]:
    found = {
        name: (directory / name).read_bytes() for name in RESOURCES if (directory / name).is_file()
    }
    template = _chat_template(directory)
    if template is not None:
        found[TEMPLATE] = template
    return found


def _chat_template(directory: Path) -> bytes | None:
    """The template file, else the (default) template inside ``tokenizer_config.json``."""
    if (directory / TEMPLATE).is_file():
        return (directory / TEMPLATE).read_bytes()
    if not (directory / "tokenizer_config.json").is_file():
        return None
    node = _read_json(directory / "tokenizer_config.json").find("chat_template")
    if node is None:
        return None
    value = node.value
    if isinstance(value, list):
        named = {entry.need("name").text(): entry.need("template") for entry in node.elements()}
        if "default" not in named:
            node.fail("has no template named 'default'")
        value = named["default"].value
    return value.encode() if isinstance(value, str) else node.fail("is no string")


def _hash_file(path: Path, progress: Callable[[str, int], None]) -> SourceFile:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_HASH_BYTES):
            digest.update(block)
            size += len(block)
            progress(path.name, len(block))
    return SourceFile(path.name, size, digest.hexdigest())
