"""Artifacts and what is installed: formats, converters, and the cache of converted checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ninfer_core.draft_choice import target_facts
from ninfer_core.errors import NinferError
from ninfer_core.hookspecs import ARCHITECTURES, DRAFT_BACKENDS, WEIGHT_FORMATS
from ninfer_core.models import ResolvedModel
from ninfer_core.plugins import PluginHost

if TYPE_CHECKING:
    from ninfer_core.artifact import FormatRegistry
    from ninfer_core.artifact.convert import (
        ArchitectureConverter,
        ComponentSpec,
        ConvertProgress,
        DraftConverter,
        ModelDescription,
    )

CACHE_VARIABLE: Final = "NINFER_CACHE_DIR"
_SOURCES: Final = ("*.safetensors", "*.json", "*.jinja")


class CacheError(NinferError):
    """The cache directory cannot be used."""


def converters(host: PluginHost) -> dict[str, ArchitectureConverter]:
    """The converter of every class name that an installed architecture knows.

    Raises the PluginError of an architecture that cannot be loaded.
    """
    found: dict[str, ArchitectureConverter] = {}
    for entry in host.entries(ARCHITECTURES):
        if entry.converter and not entry.unavailable:
            converter = host.load(ARCHITECTURES, entry.name, "converter")
            found.update(dict.fromkeys(entry.architectures, converter))
    return found


def draft_converters(host: PluginHost) -> dict[str, DraftConverter]:
    """The converter of every class name of a drafter that is published by itself.

    Asking for one names its plug-in. Raises the PluginError of one that cannot be loaded.
    """
    return {
        architecture: partial(_described, host, entry.name)
        for entry in host.described(DRAFT_BACKENDS)
        if entry.describe and not entry.unavailable
        for architecture in entry.architectures
    }


def _described(
    host: PluginHost, backend: str, config: Mapping[str, Any], target: ModelDescription
) -> ComponentSpec:
    host.activate(host.provider(DRAFT_BACKENDS, backend).name)
    describe = host.load(DRAFT_BACKENDS, backend, "describe")
    components = {component.name: component.config for component in target.components}
    component: ComponentSpec = describe(config, target_facts(target.architecture, components))
    return component


def weight_formats(host: PluginHost) -> FormatRegistry:
    """Every installed weight format; one that cannot be loaded raises when it is asked for."""
    from ninfer_core.artifact import FormatRegistry

    names = [entry.name for entry in host.entries(WEIGHT_FORMATS) if not entry.unavailable]
    return FormatRegistry((), {name: partial(host.load, WEIGHT_FORMATS, name) for name in names})


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """``$NINFER_CACHE_DIR``, else ``~/.cache/ninfer``."""
    named = (os.environ if environ is None else environ).get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "ninfer"


def artifact_of(model: ResolvedModel, host: PluginHost, progress: ConvertProgress) -> Path:
    """The artifact that ``model`` is, or the cached one of its checkpoint.

    Raises what :func:`cached_artifact` raises.
    """
    if model.kind == "ninfer":
        return model.path
    return cached_artifact(model.path, host, progress)


def cached_artifact(
    directory: Path, host: PluginHost, progress: ConvertProgress, *, recipe: str = "bf16"
) -> Path:
    """The artifact of the Hugging Face checkpoint in ``directory``, converted when it is not there.

    An artifact serves until the path, size or modification time of one of the checkpoint's files
    changes; the one it replaces is then removed. Raises ArtifactError, PluginError, CacheError.
    """
    from ninfer_core.artifact.convert import RECIPES, ConvertOptions, convert

    recipe = RECIPES.get(recipe).name
    target = _target(directory.resolve(), recipe)
    if not target.is_file():
        _make(target.parent)
        options = ConvertOptions(recipe=recipe, name=directory.resolve().name, overwrite=True)
        convert(
            directory,
            target,
            architectures=converters(host),
            options=options,
            progress=progress,
            formats=weight_formats(host),
        )
        _remove_others(target, recipe)
    return target


def _target(directory: Path, recipe: str) -> Path:
    from ninfer_core.artifact.convert.run import CONVERTER

    place = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    state = json.dumps([CONVERTER, *_state(directory)])
    key = hashlib.sha256(state.encode()).hexdigest()[:16]
    folder = cache_directory() / "converted" / f"{directory.name}-{place}"
    return folder / f"{recipe}-{key}.ninfer"


def _state(directory: Path) -> Iterator[tuple[str, int, int]]:
    for path in sorted({path for pattern in _SOURCES for path in directory.glob(pattern)}):
        facts = path.stat()
        yield path.name, facts.st_size, facts.st_mtime_ns


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheError(
            f"the cache directory {folder} cannot be made: {error.strerror}",
            hint=f"set {CACHE_VARIABLE} to a directory that can be written",
        ) from None


def _remove_others(target: Path, recipe: str) -> None:
    for path in target.parent.glob(f"{recipe}-*.ninfer*"):
        if not path.name.startswith(target.name):
            path.unlink(missing_ok=True)
