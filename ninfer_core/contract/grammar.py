"""The seam for constraint engines: compile once, match per request.

A constraint is written by a model family's Frontend and compiled by a grammar backend; neither
knows the other. ``GrammarSource.text`` is JSON ``{"parts": {name: part}}``, where a part is one of

* ``{"kind": "json_schema", "schema", "param", "closed"}``: JSON under a schema. ``param`` is the
  request's field, for refusals; ``closed``: an object that lists properties and says nothing of
  others has no others,
* ``{"kind": "json_object"}``, ``{"kind": "regex", "pattern"}`` (the whole text),
  ``{"kind": "grammar", "source"}`` (GBNF, rule ``root``), ``{"kind": "choice", "values"}``, each
  with ``param``,
* ``{"kind": "text", "value"}``, ``{"kind": "seq" | "alt", "items": [part]}``,
  ``{"kind": "optional" | "loop", "item": part}``,
* ``{"kind": "members", "schema", "param", "before", "after", "tags", "enforce"}``: the members of
  an object one by one, each ``before[0] name before[1] value after``; a text stands as it is and
  holds none of ``tags``, anything else is JSON. ``enforce`` true: the schema is enforced or
  refused; null: enforced where it can be; false: only names are.

``GrammarSource.framing`` is JSON ``{"start": n, "stages": [stage]}``: what the output goes through.
A stage ``{"part": name | null, "exits": {id: stage}, "early": {id: stage}, "end": bool, "next":
stage | null}`` is free text (null) or a text of a part; a token of ``exits`` leads on once that
text is whole, one of ``early`` before the stage has any text; ``end`` says that the output may end
once it is whole; ``next`` follows by itself then.
``prefix`` beside them is text of the first stage that stands in the prompt already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ninfer_core.contract.frontend import ColumnState, CompiledGrammar, GrammarSource

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GrammarVocabulary:
    """What a backend has to know of a tokenizer: the bytes of every id, empty for ids that spell no
    text (special and added tokens, marks), and the ids that end an output."""

    token_bytes: Sequence[bytes]
    ends: frozenset[int]


class Matcher(Protocol):
    """The committed position of one request inside its grammar."""

    def fill(self, drafts: Sequence[int], out: npt.NDArray[np.uint32]) -> tuple[ColumnState, ...]:
        """As :meth:`MaskProvider.fill`; leaves the matcher where it was."""
        ...

    def fork(self) -> Matcher: ...

    def accept(self, token_ids: Sequence[int]) -> int:
        """Advance over legal tokens; returns how many were legal."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the output may end here."""
        ...


class GrammarCompiler(Protocol):
    """One per tokenizer; thread safe; bounded in time, size and memory."""

    def load(self) -> None:
        """Set up what the first :meth:`compile` would: the library, and what it makes of the
        vocabulary. Takes seconds. Raises NinferError for a library that does not load."""
        ...

    def check(self, source: GrammarSource) -> None:
        """Cheap validation without compiling. Raises InvalidSchema with a JSON pointer."""
        ...

    def compile(self, source: GrammarSource) -> CompiledGrammar: ...

    def open(self, compiled: CompiledGrammar) -> Matcher: ...

    def close(self) -> None:
        """End the processes and threads that compiling started; nothing is compiled afterwards.
        Idempotent."""
        ...


class GrammarBackend(Protocol):
    """What ``GrammarBackendEntry.load`` loads."""

    def __call__(self, vocabulary: GrammarVocabulary) -> GrammarCompiler:
        """Cheap: a backend loads its library when something is compiled."""
        ...
