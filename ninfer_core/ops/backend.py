"""What an op backend's loader string names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Prepare = Callable[[Callable[[], None]], None]
"""Calls a rehearsal, which calls ops for no result, and makes ready whatever those ops would set up
at a first call. What they do not write meanwhile has any value, but integers that they give read as
zeros: a rehearsal may index by them. No value may decide what it calls, and none is used
afterwards. A failure is logged; the first call sets up what is missing."""


@dataclass(frozen=True, slots=True)
class OpBackend:
    """Implementations by op name (the fields of :class:`ninfer_core.ops.table.Ops`).

    A backend may lack ops; asking it for one is an error, never another backend's turn. One whose
    ops need nothing at a first call has no ``prepare``.
    """

    name: str
    ops: Mapping[str, Callable[..., Any]]
    prepare: Prepare | None = None
