"""Drafters that are published as checkpoints of their own: found, matched, added to a target's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from ninfer_core.artifact.convert.architecture import ComponentSpec, ModelDescription
from ninfer_core.artifact.convert.checkpoint import Checkpoint, open_checkpoint
from ninfer_core.artifact.convert.matching import Match, component_sources, refuse_extra
from ninfer_core.artifact.convert.safetensors import SourceTensor
from ninfer_core.artifact.errors import ConversionError
from ninfer_core.artifact.formats import row_blocks
from ninfer_core.artifact.model import SourceFile
from ninfer_core.artifact.quality import BLOCK_ELEMENTS

DraftConverter: TypeAlias = Callable[[Mapping[str, Any], ModelDescription], ComponentSpec]
"""The component of a drafter's ``config.json`` beside a target; raises `ArtifactError` naming the
key that is at fault or that does not fit the target."""

_UNREAD = ("*.pt", "*.pth", "*.bin")
_BELONG = "give the drafter as it was released for this target"


@dataclass(frozen=True, slots=True)
class Drafter:
    """One opened drafter and its component."""

    checkpoint: Checkpoint
    component: ComponentSpec

    def hash_sources(self, progress: Callable[[str, int], None]) -> tuple[SourceFile, ...]:
        """As those of a target, each name behind the component's."""
        name = self.component.name
        sources = self.checkpoint.hash_sources(progress)
        return tuple(replace(source, name=f"{name}/{source.name}") for source in sources)


def open_drafters(
    directories: Sequence[str | os.PathLike[str]],
    converters: Mapping[str, DraftConverter],
    target: ModelDescription,
) -> tuple[Drafter, ...]:
    """Read the drafters' configurations and headers; `ArtifactError` for one that does not fit."""
    found: dict[str, Drafter] = {}
    for directory in map(Path, directories):
        drafter = _open(directory, converters, target)
        name = drafter.component.name
        if name in found:
            other = found[name].checkpoint.directory
            raise ConversionError(
                str(directory), f"is a {name} drafter, as {other} is", "give one of each kind"
            )
        found[name] = drafter
    return tuple(found.values())


def with_drafter(match: Match, drafter: Drafter) -> Match:
    """``match`` with the drafter's component: nothing missing, extra or misshapen.

    Copies of the target's tables are left out when they are equal, and refused otherwise.
    """
    component = drafter.component
    tensors = dict(drafter.checkpoint.tensors)
    for key, why in component.refused.items():
        if key in tensors:
            raise ConversionError(key, why, _BELONG)
    copies = [key for key in component.copies if key in tensors]
    for key in copies:
        _check_copy(tensors.pop(key), match, component.copies[key])
    wanted = {(component.name, name): tensor for name, tensor in tensors.items()}
    sources = component_sources(component, wanted)
    refuse_extra([tensor.name for tensor in wanted.values()])
    notes = (f"{component.name}: {key} is the target's own and is left out" for key in copies)
    return replace(
        match,
        components=(*match.components, component),
        sources={**match.sources, **sources},
        ignored=(*match.ignored, *(f"{component.name}/{key}" for key in copies)),
        notes=(*match.notes, *notes),
    )


def _open(
    directory: Path, converters: Mapping[str, DraftConverter], target: ModelDescription
) -> Drafter:
    checkpoint = open_checkpoint(directory)
    unread = sorted(path.name for pattern in _UNREAD for path in directory.glob(pattern))
    if unread:
        raise ConversionError(
            str(directory / unread[0]), "would not be read", "move it away if nothing needs it"
        )
    converter = checkpoint.among(converters, str(directory / "config.json"), "drafter")
    return Drafter(checkpoint, converter(checkpoint.config, target))


def _check_copy(copy: SourceTensor, match: Match, parameters: Sequence[str]) -> None:
    """Raise unless ``copy`` holds the values of the first of the target's ``parameters``."""
    name = next(name for name in parameters if name in match.sources)
    (own,) = match.sources[name]
    if copy.shape != own.shape or not _equal(copy, own):
        raise ConversionError(
            copy.name,
            f"is not the target's {name}; a drafter with a table of its own is not run",
            "give a drafter that shares its target's embedding and head",
        )


def _equal(one: SourceTensor, other: SourceTensor) -> bool:
    import torch

    rows, width = one.shape
    return all(
        torch.equal(one.rows(width, start, stop).float(), other.rows(width, start, stop).float())
        for start, stop in row_blocks(rows, width, 1, BLOCK_ELEMENTS)
    )
