"""What an op backend's loader string names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OpBackend:
    """Implementations by op name (the fields of :class:`ninfer_core.ops.table.Ops`).

    A backend may lack ops; asking it for one is an error, never another backend's turn.
    """

    name: str
    ops: Mapping[str, Callable[..., Any]]
