"""Seam: grammar backends for constrained output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ninfer_core.hookspecs.markers import hookspec
from ninfer_core.hookspecs.records import Entry, Seam


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarBackendEntry(Entry):
    """A grammar backend.

    ``load`` loads a factory that takes the tokenizer's vocabulary and gives a compiler
    (``ninfer_core.contract.grammar``), which refuses the sources that it does not compile.
    """

    load: str


class GrammarSpecs:
    """Hooks for plug-ins that compile grammars to token masks."""

    @hookspec
    def ninfer_grammar_backends(self) -> Iterable[GrammarBackendEntry]:
        """Offer grammar backends.

        Since: api 1.0.
        Called: once per process, when plug-ins load; its library loads when a server starts, or
        at the first constrained request of another process.
        Returns: entries; the highest ``priority`` that can be loaded serves an engine, unless
            ``EngineOptions.grammar_backend`` names another.
        Threading: main thread at load; compilation runs on engine ingress threads.
        Example::

            @hookimpl
            def ninfer_grammar_backends():
                yield GrammarBackendEntry(name="digits", load="ninfer_digits.backend:open_backend")
        """
        return ()


GRAMMAR_BACKENDS: Final = Seam("ninfer_grammar_backends", "grammar backend", GrammarBackendEntry)
