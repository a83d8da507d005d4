"""Which plug-ins a run asks for and which it leaves out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ninfer_core.plugins.report import PluginPin

_OFF = frozenset({"", "0", "false", "no", "off"})


def normalise(name: str) -> str:
    """One spelling for a plug-in's name: ``Spec-MTP`` and ``spec_mtp`` are the same."""
    return name.strip().lower().replace("-", "_").replace(".", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to load.

    ``requested`` plug-ins become active and must work. ``blocked`` ones are not imported.
    Without ``autoload`` only core's own and requested plug-ins load. ``strict`` makes every broken
    plug-in an error. With ``pins``, as in a child process, exactly these plug-ins load, in exactly
    these versions.
    """

    requested: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    autoload: bool = True
    strict: bool = False
    pins: tuple[PluginPin, ...] = ()

    @classmethod
    def of(
        cls,
        requested: Iterable[str] = (),
        blocked: Iterable[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Selection:
        """The given names together with what the environment says.

        ``NINFER_PLUGINS`` (comma separated) adds requests, ``NINFER_DISABLE_PLUGIN_AUTOLOAD`` turns
        ``autoload`` off and ``NINFER_STRICT_PLUGINS`` turns ``strict`` on.
        """
        env = os.environ if environ is None else environ
        named = [name for name in env.get("NINFER_PLUGINS", "").split(",") if name.strip()]
        return cls(
            requested=_unique([*requested, *named]),
            blocked=_unique(blocked),
            autoload=not _is_on(env, "NINFER_DISABLE_PLUGIN_AUTOLOAD"),
            strict=_is_on(env, "NINFER_STRICT_PLUGINS"),
        )


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(normalise(name) for name in names))


def _is_on(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").strip().lower() not in _OFF
