"""How one plug-in ended: the record behind ``ninfer plugins`` and behind every plug-in message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from ninfer_core.plugins.errors import (
    PluginBlocked,
    PluginConflict,
    PluginError,
    PluginIncompatible,
    PluginLoadError,
    PluginUnavailable,
)
from ninfer_core.version import CORE

PluginState = Literal[
    "ready", "blocked", "incompatible", "conflict", "failed", "registered", "active"
]
"""``ready``: found and compatible, not imported. ``registered``: its passive entries work.
``active``: named, so its active entries work too. ``conflict``: one of its names has two providers.
"""

BROKEN: Final[frozenset[PluginState]] = frozenset({"incompatible", "conflict", "failed"})

_ERRORS: Final[dict[PluginState, type[PluginError]]] = {
    "blocked": PluginBlocked,
    "incompatible": PluginIncompatible,
    "conflict": PluginConflict,
    "failed": PluginLoadError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginPin:
    """One resolved plug-in, as a parent process hands it to a child."""

    name: str
    dist: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReport:
    """One plug-in: where it comes from, how it ended and why.

    ``reason`` and ``mend`` are empty when nothing is wrong. ``hooks`` are the hook names that it
    implements, ``provides`` what it offers ("command run"); ``unavailable`` is why this version
    runs none of its entries, "" when it runs some.
    """

    name: str
    dist: str
    version: str
    location: str
    state: PluginState = "ready"
    reason: str = ""
    mend: str = ""
    hooks: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    unavailable: str = ""

    @property
    def title(self) -> str:
        """The plug-in with its distribution, for messages."""
        return f"plug-in {self.name} ({self.dist} {self.version})"

    @property
    def broken(self) -> bool:
        """Whether a user should hear about it even when it was not asked for."""
        return self.state in BROKEN

    @property
    def loaded(self) -> bool:
        """Whether its hooks are registered; in a conflict its other names still work."""
        return bool(self.hooks) and self.state in ("registered", "active", "conflict")

    @property
    def line(self) -> str:
        """One line: distribution, cause, mending command."""
        return str(self._error(PluginError))

    @property
    def upgrade(self) -> str:
        """What brings a later version of the plug-in, and of core, which may be what lacks it."""
        return f"pip install --upgrade {' '.join(dict.fromkeys((CORE, self.dist)))}"

    def ended(self, state: PluginState, reason: str, mend: str) -> PluginReport:
        """The same plug-in in a state that needs a reason."""
        return replace(self, state=state, reason=reason, mend=mend)

    def check(self) -> None:
        """Raise the ``PluginError`` of a plug-in that was asked for and cannot act."""
        if self.state in _ERRORS:
            raise self._error(_ERRORS[self.state])
        if self.unavailable:
            raise PluginUnavailable(
                f"{self.title} cannot be used: {self.unavailable}",
                hint=f"leave out `--plugin {self.name}`; later versions may: {self.upgrade}",
            )

    def _error(self, kind: type[PluginError]) -> PluginError:
        return kind(f"{self.title} {self.state}: {self.reason}", hint=self.mend or None)
