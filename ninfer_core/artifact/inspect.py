"""What an artifact is, as a typed summary for people and scripts; reads no payload."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from ninfer_core.artifact.container import VERSION
from ninfer_core.artifact.model import Provenance, TensorObject
from ninfer_core.artifact.reader import Artifact


@dataclass(frozen=True, slots=True)
class ComponentSummary:
    """``parameters`` counts logical elements, ``bytes`` the distinct objects they are bound to."""

    name: str
    target: str | None
    tensors: int
    parameters: int
    bytes: int
    resources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FormatSummary:
    """``max_rms_relative_error`` is the worst over the format's tensors."""

    name: str
    layout: str
    tensors: int
    bytes: int
    max_rms_relative_error: float


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """A stored tensor and how far it is from its source (`QualityBlock`)."""

    id: str
    shape: tuple[int, ...]
    format: str
    layout: str
    bytes: int
    rms_relative_error: float
    max_abs_error: float


@dataclass(frozen=True, slots=True)
class QualitySummary:
    """The worst value over all tensors, and the tensor that has it (None without tensors)."""

    max_rms_relative_error: float
    max_rms_object: str | None
    max_zero_row_share: float
    max_zero_row_object: str | None
    all_finite: bool


@dataclass(frozen=True, slots=True)
class ArtifactSummary:
    name: str
    artifact_id: str
    version: int
    architecture: str | None
    files: tuple[int, ...]
    objects: int
    uses: int
    components: tuple[ComponentSummary, ...]
    formats: tuple[FormatSummary, ...]
    tensors: tuple[TensorSummary, ...]
    quality: QualitySummary
    provenance: Provenance

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarise(artifact: Artifact) -> ArtifactSummary:
    directory = artifact.directory
    tensors = [entry for entry in directory.objects if isinstance(entry, TensorObject)]
    return ArtifactSummary(
        name=artifact.name,
        artifact_id=artifact.id,
        version=VERSION,
        architecture=artifact.architecture,
        files=tuple(file.bytes for file in directory.files),
        objects=len(directory.objects),
        uses=len(directory.uses),
        components=tuple(_component(artifact, name) for name in artifact.component_names),
        formats=_formats(tensors),
        tensors=tuple(map(_tensor, tensors)),
        quality=_quality(tensors),
        provenance=directory.provenance,
    )


def _component(artifact: Artifact, name: str) -> ComponentSummary:
    component = artifact.component(name)
    bindings = list(artifact.bindings(name))
    tensors = {part.object for binding in bindings for part in binding.parts}
    stored = tensors | set(component.resources.values())
    return ComponentSummary(
        name=name,
        target=component.target,
        tensors=len(tensors),
        parameters=sum(math.prod(binding.shape) for binding in bindings),
        bytes=sum(artifact.object(object_id).bytes for object_id in stored),
        resources=tuple(component.resources),
    )


def _formats(tensors: list[TensorObject]) -> tuple[FormatSummary, ...]:
    groups: dict[tuple[str, str], list[TensorObject]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.format, tensor.layout), []).append(tensor)
    return tuple(
        FormatSummary(
            *key,
            tensors=len(groups[key]),
            bytes=sum(tensor.bytes for tensor in groups[key]),
            max_rms_relative_error=max(t.quality.rms_relative_error for t in groups[key]),
        )
        for key in sorted(groups)
    )


def _tensor(tensor: TensorObject) -> TensorSummary:
    quality = tensor.quality
    return TensorSummary(
        id=tensor.id,
        shape=tensor.shape,
        format=tensor.format,
        layout=tensor.layout,
        bytes=tensor.bytes,
        rms_relative_error=quality.rms_relative_error,
        max_abs_error=quality.max_abs_error,
    )


def _quality(tensors: list[TensorObject]) -> QualitySummary:
    rms = max(tensors, key=lambda t: t.quality.rms_relative_error, default=None)
    empty = max(tensors, key=lambda t: t.quality.zero_row_share, default=None)
    return QualitySummary(
        max_rms_relative_error=rms.quality.rms_relative_error if rms else 0.0,
        max_rms_object=rms.id if rms else None,
        max_zero_row_share=empty.quality.zero_row_share if empty else 0.0,
        max_zero_row_object=empty.id if empty else None,
        all_finite=all(tensor.quality.finite for tensor in tensors),
    )
