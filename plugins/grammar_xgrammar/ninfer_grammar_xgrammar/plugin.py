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
        summary="JSON schema, regular expressions and EBNF through xgrammar",
        kinds=("json_schema", "regex", "ebnf"),
        load="ninfer_grammar_xgrammar.backend:open_backend",
        requirements=("xgrammar>=0.2",),
        unavailable="this version of ninfer-grammar-xgrammar does not constrain output yet",
    )
