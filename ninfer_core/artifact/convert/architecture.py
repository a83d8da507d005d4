"""What an architecture tells the converter: its parameters and where a checkpoint keeps them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ninfer_core.artifact.model import JsonObject


class ParameterRole(enum.Enum):
    """What a recipe may do with a parameter.

    MATRIX multiplies activations, TABLE is indexed or projected by vocabulary rows (padding rows
    may be zero), CODEBOOK is indexed by vocabulary rows alone and stays at 16 bits or more (rows
    may be zero), VECTOR keeps at least its stored precision.
    """

    MATRIX = "matrix"
    TABLE = "table"
    CODEBOOK = "codebook"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A checkpoint tensor by its key (its name without the model's prefix) and shape."""

    key: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A logical parameter: ``sources``, one after another in C order, are its elements.

    ``inputs`` names the activations that it meets: one Use each.
    """

    name: str
    shape: tuple[int, ...]
    role: ParameterRole
    sources: tuple[SourceSpec, ...]
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FusionGroup:
    """Parameters that a fused call reads together; stored side by side as one parent ``name``."""

    name: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """A component that this checkpoint's configuration provides for.

    Of a checkpoint that is a drafter alone, ``copies`` maps keys that may repeat a table of the
    target to that table's parameter (the first that there is), ``refused`` maps keys to why such a
    tensor cannot be used.
    """

    name: str
    target: str | None
    config: JsonObject
    parameters: tuple[ParameterSpec, ...]
    groups: tuple[FusionGroup, ...] = ()
    copies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a checkpoint tensor belongs; ``ignored`` says why it is not needed, if so."""

    component: str
    key: str
    ignored: str | None = None


class ModelDescription(Protocol):
    """One checkpoint's model, described from its configuration."""

    @property
    def architecture(self) -> str:
        """Class name, such as ``Qwen3_5ForCausalLM``."""
        ...

    @property
    def components(self) -> tuple[ComponentSpec, ...]:
        """What can be carried, text first."""
        ...

    def locate(self, tensor_name: str) -> Place | None:
        """The place of a checkpoint tensor; None for a name that this architecture lacks."""
        ...


class ArchitectureConverter(Protocol):
    """Registered under the architecture's class names."""

    def describe(self, config: Mapping[str, Any]) -> ModelDescription:
        """Describe the model of ``config.json``; raises `ArtifactError` naming a bad key."""
        ...
