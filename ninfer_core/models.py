"""What a user means by MODEL: a path, a model source, or nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ninfer_core.errors import NinferError
from ninfer_core.hookspecs import MODEL_SOURCES, ModelSourceEntry
from ninfer_core.plugins import PluginHost, PluginNotFound

DEFAULT_MODEL: Final = "demo"
VARIABLE: Final = "NINFER_MODEL"

ModelKind = Literal["ninfer", "hf"]


class ModelNotFound(NinferError):
    """MODEL names neither an artifact, nor a Hugging Face directory, nor a model source."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """Where a model lies.

    ``kind`` "hf" is a Hugging Face directory, which the caller converts. ``source`` is the model
    source's name, None for a path. ``note`` is a line for stderr when MODEL was left out.
    """

    path: Path
    kind: ModelKind
    source: str | None = None
    note: str | None = None


def resolve_model(
    model: str | os.PathLike[str] | None,
    host: PluginHost,
    environ: Mapping[str, str] | None = None,
) -> ResolvedModel:
    """Resolve MODEL: as given, else ``$NINFER_MODEL``, else ``demo``, with a note that says so.

    A name without a path separator that a plug-in offers as model source is that source; write
    ``./name`` for a file of the same name. Raises ModelNotFound, or the PluginError of a source.
    """
    env = os.environ if environ is None else environ
    if model is not None:
        return _resolve(os.fspath(model), host, None)
    if env.get(VARIABLE):
        return _resolve(env[VARIABLE], host, f"MODEL not given: using ${VARIABLE}={env[VARIABLE]}")
    return _resolve(
        DEFAULT_MODEL, host, f"MODEL not given and ${VARIABLE} not set: using {DEFAULT_MODEL!r}"
    )


def _resolve(model: str, host: PluginHost, note: str | None) -> ResolvedModel:
    if not model.strip():
        raise ModelNotFound("MODEL is empty", hint="name a file, a directory or a model source")
    name, _, choice = model.partition(":")
    source = _source(name, host)
    if source is not None and bool(choice) == bool(source.argument):
        resolve = host.load(MODEL_SOURCES, name, "resolve")
        path = Path(resolve(choice) if choice else resolve())
        return ResolvedModel(path=path, kind=_kind(path), source=model, note=note)
    path = Path(model).expanduser()
    if path.exists():
        return ResolvedModel(path=path, kind=_kind(path), note=note)
    sources = ", ".join(entry.spelling for entry in host.entries(MODEL_SOURCES))
    raise ModelNotFound(
        f"MODEL {model!r} is neither a file, a directory nor a model source",
        hint=f"check the path, or name one of the installed sources: {sources or 'none'}",
    )


def _source(name: str, host: PluginHost) -> ModelSourceEntry | None:
    if os.sep in name or (os.altsep and os.altsep in name):
        return None
    try:
        host.provider(MODEL_SOURCES, name)
    except PluginNotFound:
        return None
    return host.get(MODEL_SOURCES, name)


def _kind(path: Path) -> ModelKind:
    if not path.exists():
        raise ModelNotFound(
            f"MODEL {path} does not exist", hint="reinstall the plug-in of this model source"
        )
    if path.is_file():
        return "ninfer"
    if (path / "config.json").is_file():
        return "hf"
    raise ModelNotFound(
        f"MODEL {path} is a directory without config.json",
        hint="name a .ninfer file, or the directory of a Hugging Face checkpoint",
    )
