"""The outcome of a conversion, for people and scripts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What was written and what was left behind.

    ``bytes`` are those of all files. ``not_carried`` lists checkpoint tensors of components that
    were not converted, ``ignored`` tensors that the model does not need; ``notes`` are lines for
    a person, one per fact.
    """

    path: str
    artifact_id: str
    name: str
    architecture: str
    recipe: str
    components: tuple[str, ...]
    tensors: int
    bytes: int
    files: int
    resources: tuple[str, ...]
    not_carried: tuple[str, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]
    max_rms_relative_error: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
