"""Which grammar backend serves constrained output."""

from __future__ import annotations

from ninfer_core.contract.grammar import GrammarBackend
from ninfer_core.hookspecs import GRAMMAR_BACKENDS
from ninfer_core.plugins import PluginHost
from ninfer_core.plugins.compat import missing_requirement


def grammar_backend(host: PluginHost, name: str | None) -> GrammarBackend | None:
    """The backend ``name``, or without one the first that can be used; None if there is none, so
    that constraints are refused by name. Raises PluginError for a backend that was asked for."""
    if name is None:
        usable = (
            entry.name
            for entry in host.entries(GRAMMAR_BACKENDS)
            if not entry.unavailable and missing_requirement(entry.requirements) is None
        )
        name = next(usable, None)
    if name is None:
        return None
    backend: GrammarBackend = host.load(GRAMMAR_BACKENDS, name)
    return backend
