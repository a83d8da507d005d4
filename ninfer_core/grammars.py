"""Which grammar backend serves constrained output."""

from __future__ import annotations

import logging

from ninfer_core.contract.grammar import GrammarBackend
from ninfer_core.hookspecs import GRAMMAR_BACKENDS
from ninfer_core.plugins import PluginError, PluginHost
from ninfer_core.plugins.compat import missing_requirement

_log = logging.getLogger(__name__)


def grammar_backend(host: PluginHost, name: str | None) -> GrammarBackend | None:
    """The backend ``name``, or without one the first of a plug-in that was named, or else the first
    that can be used; None if there is none, so that constraints are refused by name.

    Raises PluginError for a backend that was asked for, itself or by its plug-in.
    """
    chosen = name or _of_named_plugin(host)
    if chosen is not None:
        backend: GrammarBackend = host.load(GRAMMAR_BACKENDS, chosen)
        return backend
    for entry in host.entries(GRAMMAR_BACKENDS):
        if entry.unavailable or missing_requirement(entry.requirements) is not None:
            continue
        try:
            backend = host.load(GRAMMAR_BACKENDS, entry.name)
        except PluginError as error:
            _log.warning("requests with a form will be refused: %s", error)
            continue
        return backend
    return None


def grammars_named(host: PluginHost, name: str | None) -> bool:
    """Whether the backend that serves was asked for, itself or by its plug-in."""
    return name is not None or _of_named_plugin(host) is not None


def _of_named_plugin(host: PluginHost) -> str | None:
    for entry in host.entries(GRAMMAR_BACKENDS):
        if host.provider(GRAMMAR_BACKENDS, entry.name).name in host.selection.requested:
            return entry.name
    return None
