"""An artifact without weights: configuration and vocabulary of a geometry, and how to fill it.

It carries the resource ``geometry.json``: ``{"version": 1, "recipe": NAME, "seed": N}``. Weights
are then random, in the formats that the conversion recipe would store, and made when it is opened.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ninfer_core.artifact import (
    Artifact,
    ArtifactDraft,
    ArtifactError,
    ArtifactWriter,
    ResourceDraft,
)
from ninfer_core.artifact.convert import RECIPES
from ninfer_core.artifact.fields import Node
from ninfer_core.artifact.model import Component, Provenance
from ninfer_core.conversion import cache_directory
from ninfer_core.errors import UsageError
from ninfer_core.version import __version__
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.frontend.resources import COMPONENT, TEMPLATE, TOKENIZER
from ninfer_qwen3_5.geometry.drafters import drafters_of
from ninfer_qwen3_5.geometry.table import SIZES, TOKENS, config_of
from ninfer_qwen3_5.geometry.vocabulary import TEMPLATE as TEMPLATE_TEXT
from ninfer_qwen3_5.geometry.vocabulary import tokenizer_json

RESOURCE: Final = "geometry.json"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Geometry:
    """``recipe`` is a conversion recipe by name or alias, ``seed`` that of the random weights."""

    recipe: str = "bf16"
    seed: int = 0


def resolve(argument: str) -> Path:
    """The artifact of ``SIZE`` or ``SIZE:WEIGHTS``, such as ``27b:q4``, from the cache.

    Raises UsageError for an unknown size, ConversionError for unknown weights.
    """
    size_name, _, weights = argument.lower().partition(":")
    size = SIZES.get(size_name)
    if size is None:
        raise UsageError(
            f"geometry {size_name!r} is unknown", hint=f"choose one of {', '.join(SIZES)}"
        )
    geometry = Geometry(RECIPES.get(weights or "bf16").name)
    name, config = f"geometry-{size_name}-{geometry.recipe}", config_of(size)
    drafters = drafters_of(size_name)
    key = json.dumps([__version__, config, asdict(geometry), TOKENS, drafters])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    path = cache_directory() / "geometry" / f"{name}-{digest}.ninfer"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_geometry(path, name, config, geometry, TOKENS, drafters)
    return path


def write_geometry(
    path: Path,
    name: str,
    config: Mapping[str, Any],
    geometry: Geometry,
    tokens: int,
    drafters: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write the artifact of any configuration; ``tokens`` ids can be given and answered.
    ``drafters`` are configurations of drafters by component, whose weights are random too.

    Raises ArtifactError for a bad configuration, UsageError for a vocabulary that does not fit it.
    """
    rows = TextConfig.from_json(config).vocab_size
    if tokens > rows:
        raise UsageError(
            f"{tokens} tokens do not fit vocab_size {rows}", hint=f"ask for at most {rows}"
        )
    described = {"version": _VERSION, **asdict(geometry)}
    resources = {
        RESOURCE: json.dumps(described).encode(),
        TOKENIZER: tokenizer_json(tokens),
        TEMPLATE: TEMPLATE_TEXT.encode(),
    }
    draft = ArtifactDraft(
        name=name,
        components=(
            Component(COMPONENT, config, None, {key: key for key in resources}),
            *(Component(name, own, COMPONENT, {}) for name, own in (drafters or {}).items()),
        ),
        objects=tuple(ResourceDraft(key, len(data)) for key, data in resources.items()),
        bindings=(),
        uses=(),
        provenance=Provenance("ninfer geometry", geometry.recipe, ()),
    )
    with ArtifactWriter(path, draft, overwrite=True) as writer:
        for key, data in resources.items():
            writer.write(key, 0, data)
            writer.finish(key)
        writer.publish()


def read_geometry(artifact: Artifact) -> Geometry | None:
    """How to fill the model of ``artifact``; None for one that holds its weights.

    Raises ArtifactError for a description that cannot be followed.
    """
    data = artifact.resource(COMPONENT, RESOURCE)
    if data is None:
        return None
    if any(True for _ in artifact.bindings(COMPONENT)):
        raise ArtifactError(
            RESOURCE, "asks for random weights, but there are others", "remove the one or the other"
        )
    root = Node(json.loads(data), RESOURCE, "write the artifact again")
    version = root.need("version")
    if version.integer() != _VERSION:
        version.fail(f"{version.value} is not known, only {_VERSION} is")
    return Geometry(RECIPES.get(root.need("recipe").text()).name, root.need("seed").integer(0))
