"""Plug-in `grammar_xgrammar`: constrained output through xgrammar."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import hookimpl
from ninfer_core.hookspecs import GrammarBackendEntry


@hookimpl
def ninfer_grammar_backends() -> Iterable[GrammarBackendEntry]:
    """Offer xgrammar."""
    yield GrammarBackendEntry(
        name="xgrammar",
        summary="JSON schema, regular expressions, grammars and tool calls through xgrammar",
        load="ninfer_grammar_xgrammar.backend:open_backend",
        requirements=("xgrammar>=0.2",),
    )
