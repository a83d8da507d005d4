"""The typed directory of an artifact: what the JSON says, after every field was checked."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

JsonObject: TypeAlias = Mapping[str, Any]

RAW_FORMAT = "raw_bytes_v1"
TARGET_COMPONENT = "text"


class ActivationPolicy(enum.Enum):
    """Activation precisions that a use permits; each level includes the ones above it."""

    A16_ONLY = "A16Only"
    ALLOW_A8 = "AllowA8"
    ALLOW_A4 = "AllowA4"

    @property
    def permitted(self) -> tuple[str, ...]:
        return ("A16", "A8", "A4")[: list(ActivationPolicy).index(self) + 1]

    @staticmethod
    def meet(policies: Iterable[ActivationPolicy]) -> ActivationPolicy:
        """What a fused call over several uses permits: the intersection (A16Only for none)."""
        order = list(ActivationPolicy)
        return min(policies, key=order.index, default=ActivationPolicy.A16_ONLY)


@dataclass(frozen=True, slots=True)
class QualityBlock:
    """How faithful a stored tensor is to the source it was converted from.

    ``max_abs_error`` is max |stored - source|; ``rms_relative_error`` is
    ``sqrt(sum((stored - source)^2) / sum(source^2))`` (0 for an all-zero source), both rounded to
    six digits. Rows run along the last axis of tensors of rank >= 2 (vectors have none: shares 0).
    ``zero_row_share`` counts rows stored as zeros, ``collapsed_row_share`` those of them that were
    not zero in the source; ``zero_row_limit`` is the largest zero share the conversion accepted.
    """

    source_dtype: str
    finite: bool
    max_abs_error: float
    rms_relative_error: float
    zero_row_share: float
    collapsed_row_share: float
    zero_row_limit: float


@dataclass(frozen=True, slots=True)
class TensorObject:
    """A stored tensor: ``offset`` and ``bytes`` in the payload, aligned to 256 bytes."""

    id: str
    shape: tuple[int, ...]
    format: str
    layout: str
    offset: int
    bytes: int
    sha256: str
    quality: QualityBlock

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class ResourceObject:
    """Opaque bytes (a tokenizer, a template): format ``raw_bytes_v1``, any alignment."""

    id: str
    offset: int
    bytes: int
    sha256: str


StoredObject: TypeAlias = TensorObject | ResourceObject


@dataclass(frozen=True, slots=True)
class BindingPart:
    """Logical elements ``[first, first + count)`` of an object, counted in C order."""

    object: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Binding:
    """A logical parameter as the ordered concatenation of parts of objects."""

    parameter: str
    shape: tuple[int, ...]
    parts: tuple[BindingPart, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """One consumer of a parameter: the activation ``input`` it meets and what that permits.

    ``auxiliaries`` maps a role (such as ``activation_divisor``) to a tensor object's id.
    """

    parameter: str
    input: str
    activation: ActivationPolicy
    auxiliaries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Component:
    """A loadable unit: its configuration, the component it extends, and its resources by name."""

    name: str
    config: JsonObject
    target: str | None
    resources: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PayloadFile:
    """Payload bytes held by one file; the entry file comes first."""

    bytes: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """What made the artifact: no clock and no path, so that equal inputs give equal bytes."""

    converter: str
    recipe: str
    sources: tuple[SourceFile, ...]


@dataclass(frozen=True, slots=True)
class Directory:
    """The whole JSON directory."""

    name: str
    components: tuple[Component, ...]
    objects: tuple[StoredObject, ...]
    bindings: tuple[Binding, ...]
    uses: tuple[Use, ...]
    files: tuple[PayloadFile, ...]
    provenance: Provenance
