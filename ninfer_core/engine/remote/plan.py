"""What the serving process knows before the engine's process starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ninfer_core.contract.frontend import Frontend
from ninfer_core.plugins.selection import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSide:
    """The text side of a model, opened without its weights; ``close`` gives back what it reads."""

    frontend: Frontend
    close: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePlan:
    """One start.

    ``opener`` names, as ``module:attribute``, the function that the child calls with ``source``,
    the options and its plug-in host, and that returns an instance factory. ``selection`` pins the
    plug-ins. ``text_side`` opens the serving process's half while the child loads.
    """

    opener: str
    source: str | Path
    selection: Selection
    text_side: Callable[[], TextSide]
