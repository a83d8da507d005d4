"""The JSON directory to and from its typed form; cross-references are checked in `validate`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ninfer_core.artifact.container import MAX_PARTS
from ninfer_core.artifact.fields import Node, parse_json
from ninfer_core.artifact.model import (
    RAW_FORMAT,
    ActivationPolicy,
    Binding,
    BindingPart,
    Component,
    Directory,
    PayloadFile,
    Provenance,
    QualityBlock,
    ResourceObject,
    SourceFile,
    StoredObject,
    TensorObject,
    Use,
)

MAX_RANK = 16


def parse_directory(data: bytes) -> Directory:
    """The typed directory of JSON ``data``; raises `ArtifactError` naming the field at fault."""
    root = Node(parse_json(data, "directory"), "").fields(
        "components", "objects", "bindings", "uses", "files", "metadata", "provenance"
    )
    return Directory(
        name=root["metadata"].fields("name")["name"].text(),
        components=tuple(_component(name, node) for name, node in root["components"].members()),
        objects=tuple(_object(node) for node in root["objects"].elements()),
        bindings=tuple(_binding(node) for node in root["bindings"].elements()),
        uses=tuple(_use(node) for node in root["uses"].elements()),
        files=tuple(_file(node) for node in root["files"].elements(MAX_PARTS + 1)),
        provenance=_provenance(root["provenance"]),
    )


def encode_directory(directory: Directory) -> bytes:
    """Canonical JSON of a directory: equal directories give equal bytes."""
    root = {
        "metadata": {"name": directory.name},
        "provenance": _provenance_json(directory.provenance),
        "files": [{"bytes": file.bytes} for file in directory.files],
        "components": {c.name: _component_json(c) for c in directory.components},
        "objects": [_object_json(entry) for entry in directory.objects],
        "bindings": [_binding_json(binding) for binding in directory.bindings],
        "uses": [_use_json(use) for use in directory.uses],
    }
    text = json.dumps(root, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def _component(name: str, node: Node) -> Component:
    members = node.fields("config", "target", "resources")
    target = members["target"]
    return Component(
        name=Node(name, "components").text(),
        config=members["config"].mapping(),
        target=None if target.value is None else target.text(),
        resources={key: value.text() for key, value in members["resources"].members()},
    )


def _component_json(component: Component) -> dict[str, Any]:
    return {
        "config": component.config,
        "target": component.target,
        "resources": dict(component.resources),
    }


def _object(node: Node) -> StoredObject:
    kind = dict(node.members()).get("kind")
    if kind is not None and kind.value == "resource":
        return _resource(node)
    if kind is not None and kind.value == "tensor":
        return _tensor(node)
    return node.fail("kind must be 'tensor' or 'resource'")


def _tensor(node: Node) -> TensorObject:
    members = node.fields(
        *("id", "kind", "shape", "format", "layout", "offset", "bytes", "sha256", "quality")
    )
    return TensorObject(
        id=members["id"].text(),
        shape=_shape(members["shape"]),
        format=members["format"].text(),
        layout=members["layout"].text(),
        offset=members["offset"].integer(),
        bytes=members["bytes"].integer(1),
        sha256=members["sha256"].digest(),
        quality=_quality(members["quality"]),
    )


def _resource(node: Node) -> ResourceObject:
    members = node.fields("id", "kind", "format", "offset", "bytes", "sha256")
    if members["format"].text() != RAW_FORMAT:
        members["format"].fail(f"a resource has format {RAW_FORMAT!r}")
    return ResourceObject(
        id=members["id"].text(),
        offset=members["offset"].integer(),
        bytes=members["bytes"].integer(),
        sha256=members["sha256"].digest(),
    )


def _object_json(entry: StoredObject) -> dict[str, Any]:
    common = {"offset": entry.offset, "bytes": entry.bytes, "sha256": entry.sha256}
    if isinstance(entry, ResourceObject):
        return {"id": entry.id, "kind": "resource", "format": RAW_FORMAT, **common}
    return {
        "id": entry.id,
        "kind": "tensor",
        "shape": list(entry.shape),
        "format": entry.format,
        "layout": entry.layout,
        **common,
        "quality": _quality_json(entry.quality),
    }


def _quality(node: Node) -> QualityBlock:
    members = node.fields(*QualityBlock.__dataclass_fields__)
    return QualityBlock(
        source_dtype=members["source_dtype"].text(),
        finite=members["finite"].flag(),
        max_abs_error=members["max_abs_error"].number(),
        rms_relative_error=members["rms_relative_error"].number(),
        zero_row_share=members["zero_row_share"].number(maximum=1.0),
        collapsed_row_share=members["collapsed_row_share"].number(maximum=1.0),
        zero_row_limit=members["zero_row_limit"].number(maximum=1.0),
    )


def _quality_json(quality: QualityBlock) -> dict[str, Any]:
    return {name: getattr(quality, name) for name in QualityBlock.__dataclass_fields__}


def _shape(node: Node) -> tuple[int, ...]:
    shape = tuple(dim.integer(1) for dim in node.elements(MAX_RANK))
    return shape or node.fail("a tensor has at least one dimension")


def _binding(node: Node) -> Binding:
    members = node.fields("parameter", "shape", "parts")
    return Binding(
        parameter=members["parameter"].text(),
        shape=_shape(members["shape"]),
        parts=tuple(_part(part) for part in members["parts"].elements()),
    )


def _part(node: Node) -> BindingPart:
    members = node.fields("object", "first", "count")
    return BindingPart(
        members["object"].text(), members["first"].integer(), members["count"].integer(1)
    )


def _binding_json(binding: Binding) -> dict[str, Any]:
    parts = [{"object": p.object, "first": p.first, "count": p.count} for p in binding.parts]
    return {"parameter": binding.parameter, "shape": list(binding.shape), "parts": parts}


def _use(node: Node) -> Use:
    members = node.fields("parameter", "input", "activation", "auxiliaries")
    auxiliaries: Mapping[str, Node] = dict(members["auxiliaries"].members())
    return Use(
        parameter=members["parameter"].text(),
        input=members["input"].text(),
        activation=_policy(members["activation"]),
        auxiliaries={role: entry.text() for role, entry in auxiliaries.items()},
    )


def _policy(node: Node) -> ActivationPolicy:
    names = [policy.value for policy in ActivationPolicy]
    if node.value not in names:
        node.fail(f"expected one of {', '.join(names)}")
    return ActivationPolicy(node.value)


def _use_json(use: Use) -> dict[str, Any]:
    return {
        "parameter": use.parameter,
        "input": use.input,
        "activation": use.activation.value,
        "auxiliaries": dict(use.auxiliaries),
    }


def _file(node: Node) -> PayloadFile:
    return PayloadFile(node.fields("bytes")["bytes"].integer())


def _provenance(node: Node) -> Provenance:
    members = node.fields("converter", "recipe", "sources")
    return Provenance(
        converter=members["converter"].text(),
        recipe=members["recipe"].text(),
        sources=tuple(_source(source) for source in members["sources"].elements()),
    )


def _source(node: Node) -> SourceFile:
    members = node.fields("name", "bytes", "sha256")
    return SourceFile(
        members["name"].text(), members["bytes"].integer(), members["sha256"].digest()
    )


def _provenance_json(provenance: Provenance) -> dict[str, Any]:
    return {
        "converter": provenance.converter,
        "recipe": provenance.recipe,
        "sources": [
            {"name": source.name, "bytes": source.bytes, "sha256": source.sha256}
            for source in provenance.sources
        ],
    }
