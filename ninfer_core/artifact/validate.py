"""Cross-reference checks of a directory: ids, byte ranges, element ranges and ownership."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NoReturn

from ninfer_core.artifact.container import DAMAGED, PAGE_BYTES, TENSOR_ALIGNMENT
from ninfer_core.artifact.errors import ArtifactError
from ninfer_core.artifact.formats import FormatRegistry, WeightFormat, storage_bytes
from ninfer_core.artifact.model import (
    TARGET_COMPONENT,
    Binding,
    BindingPart,
    Directory,
    ResourceObject,
    StoredObject,
    TensorObject,
)


def validate_directory(directory: Directory, formats: FormatRegistry) -> None:
    """Raise `ArtifactError` unless every reference and range of ``directory`` holds.

    Tensors of formats that ``formats`` does not know are accepted with the size they state: the
    consumer that meets them refuses.
    """
    objects = _unique_objects(directory)
    _check_files(directory)
    _check_placement(directory)
    _check_sizes(directory, formats)
    _check_components(directory, objects)
    _check_bindings(directory, objects)
    _check_uses(directory, objects)
    _check_referenced(directory)
    _check_private(directory)


def _fail(field: str, problem: str) -> NoReturn:
    raise ArtifactError(field, problem, DAMAGED)


def _unique_objects(directory: Directory) -> dict[str, StoredObject]:
    objects: dict[str, StoredObject] = {}
    for i, entry in enumerate(directory.objects):
        if entry.id in objects:
            _fail(f"objects[{i}].id", f"{entry.id!r} occurs twice")
        objects[entry.id] = entry
    return objects


def _check_files(directory: Directory) -> None:
    if not directory.files:
        _fail("files", "lists no file")
    for i, file in enumerate(directory.files[:-1]):
        if file.bytes % PAGE_BYTES:
            _fail(f"files[{i}].bytes", f"{file.bytes} is not a multiple of {PAGE_BYTES}")


def _check_placement(directory: Directory) -> None:
    """Objects stand in order, aligned, apart, and each inside one file."""
    ends = _file_ends(directory)
    previous_end, file = 0, 0
    for i, entry in enumerate(directory.objects):
        field = f"objects[{i}].offset"
        alignment = TENSOR_ALIGNMENT if isinstance(entry, TensorObject) else 1
        if entry.offset % alignment:
            _fail(field, f"{entry.offset} is not a multiple of {alignment}")
        if entry.offset < previous_end:
            _fail(field, f"{entry.offset} lies before {previous_end}, the end of its predecessor")
        _check_gap(field, entry.offset - previous_end)
        previous_end = entry.offset + entry.bytes
        while file < len(ends) - 1 and entry.offset >= ends[file]:
            file += 1
        if previous_end > ends[file]:
            _fail(field, f"the object ends at {previous_end}, its file at {ends[file]}")
    _check_gap("files", ends[-1] - previous_end)


def _check_gap(field: str, gap: int) -> None:
    if gap >= PAGE_BYTES:
        _fail(field, f"leaves {gap} unused bytes before it, {PAGE_BYTES} or more")


def _file_ends(directory: Directory) -> list[int]:
    ends, total = [], 0
    for file in directory.files:
        total += file.bytes
        ends.append(total)
    return ends


def _check_sizes(directory: Directory, formats: FormatRegistry) -> None:
    for i, entry in enumerate(directory.objects):
        known = formats.find(entry.format) if isinstance(entry, TensorObject) else None
        if isinstance(entry, TensorObject) and known is not None:
            check_storage(f"objects[{i}]", entry, known)


def check_storage(field: str, entry: TensorObject, weight_format: WeightFormat) -> None:
    """Raise `ArtifactError` unless the tensor's layout and size are those of its format."""
    if entry.layout not in weight_format.layouts:
        _fail(f"{field}.layout", f"{entry.layout!r} is no layout of {entry.format}")
    expected = storage_bytes(weight_format, entry.shape, entry.layout)
    if entry.bytes != expected:
        _fail(
            f"{field}.bytes",
            f"{entry.bytes}, but {entry.format} of shape {list(entry.shape)} takes {expected}",
        )


def _check_components(directory: Directory, objects: dict[str, StoredObject]) -> None:
    names = {component.name for component in directory.components}
    if TARGET_COMPONENT not in names:
        _fail("components", f"{TARGET_COMPONENT!r} is missing")
    for component in directory.components:
        field, target = f"components.{component.name}", component.target
        if (target is None) != (component.name == TARGET_COMPONENT):
            _fail(f"{field}.target", f"only {TARGET_COMPONENT!r} has none")
        if target is not None and (target not in names or target == component.name):
            _fail(f"{field}.target", f"{target!r} is no other component of this artifact")
        for key, object_id in component.resources.items():
            if not isinstance(objects.get(object_id), ResourceObject):
                _fail(f"{field}.resources.{key}", f"{object_id!r} is no resource object")


def _check_bindings(directory: Directory, objects: dict[str, StoredObject]) -> None:
    components = {component.name for component in directory.components}
    seen: set[str] = set()
    for i, binding in enumerate(directory.bindings):
        field = f"bindings[{i}]"
        if binding.parameter in seen:
            _fail(f"{field}.parameter", f"{binding.parameter!r} is bound twice")
        seen.add(binding.parameter)
        if component_of(binding.parameter) not in components:
            _fail(f"{field}.parameter", f"{binding.parameter!r} names no declared component")
        _check_parts(field, binding, objects)


def _check_parts(field: str, binding: Binding, objects: dict[str, StoredObject]) -> None:
    if not binding.parts:
        _fail(f"{field}.parts", "is empty")
    for j, part in enumerate(binding.parts):
        entry = objects.get(part.object)
        if not isinstance(entry, TensorObject):
            _fail(f"{field}.parts[{j}].object", f"{part.object!r} is no tensor object")
        if part.first + part.count > entry.elements:
            _fail(
                f"{field}.parts[{j}]",
                f"ends at element {part.first + part.count} of {entry.elements}",
            )
    if _overlapping(binding.parts):
        _fail(f"{field}.parts", f"{binding.parameter!r} covers the same elements twice")
    bound, expected = sum(part.count for part in binding.parts), math.prod(binding.shape)
    if bound != expected:
        _fail(f"{field}.shape", f"{list(binding.shape)} has {expected} elements, {bound} are bound")


def _overlapping(parts: Sequence[BindingPart]) -> bool:
    ordered = sorted(parts, key=lambda part: (part.object, part.first))
    return any(a.object == b.object and a.first + a.count > b.first for a, b in pairwise(ordered))


def _check_uses(directory: Directory, objects: dict[str, StoredObject]) -> None:
    bound = {binding.parameter for binding in directory.bindings}
    seen: set[tuple[str, str]] = set()
    for i, use in enumerate(directory.uses):
        field = f"uses[{i}]"
        if use.parameter not in bound:
            _fail(f"{field}.parameter", f"{use.parameter!r} is bound nowhere")
        if (use.parameter, use.input) in seen:
            _fail(field, f"the use of {use.parameter!r} by {use.input!r} occurs twice")
        seen.add((use.parameter, use.input))
        for role, object_id in use.auxiliaries.items():
            if not isinstance(objects.get(object_id), TensorObject):
                _fail(f"{field}.auxiliaries.{role}", f"{object_id!r} is no tensor object")


def _check_referenced(directory: Directory) -> None:
    referenced = {part.object for binding in directory.bindings for part in binding.parts}
    referenced.update(o for use in directory.uses for o in use.auxiliaries.values())
    referenced.update(o for c in directory.components for o in c.resources.values())
    for i, entry in enumerate(directory.objects):
        if entry.id not in referenced:
            _fail(f"objects[{i}]", f"nothing refers to {entry.id!r}")


def _check_private(directory: Directory) -> None:
    """Data of an optional component stands in objects of its own, so that it can stay unloaded."""
    ranges: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for binding in directory.bindings:
        component = component_of(binding.parameter)
        for part in binding.parts:
            owners = ranges.setdefault(part.object, {})
            owners.setdefault(component, []).append((part.first, part.first + part.count))
    for object_id, owners in ranges.items():
        if len(owners) == 1:
            continue
        shared = _merged(owners.get(TARGET_COMPONENT, []))
        private = (r for name, own in owners.items() if name != TARGET_COMPONENT for r in own)
        if not all(_covered(shared, first, last) for first, last in private):
            names = " and ".join(sorted(owners))
            _fail(f"object {object_id!r}", f"mixes private data of the components {names}")


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _covered(ranges: Sequence[tuple[int, int]], first: int, last: int) -> bool:
    """Whether one of the disjoint sorted ``ranges`` holds all of ``[first, last)``."""
    at = bisect_right(ranges, (first, math.inf)) - 1
    return at >= 0 and last <= ranges[at][1]


def component_of(parameter: str) -> str:
    """The component of a logical parameter: its first dotted segment."""
    return parameter.partition(".")[0]
