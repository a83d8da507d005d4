"""From schemas to terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer_grammar_xgrammar import limits
from ninfer_grammar_xgrammar.schema import applied, keywords
from ninfer_grammar_xgrammar.schema.document import Conj, Document, Node, below
from ninfer_grammar_xgrammar.schema.negate import negated
from ninfer_grammar_xgrammar.schema.terms import ANY_TERMS, NULL, Const, Num, Term, meet, type_of
from ninfer_grammar_xgrammar.schema.values import Values

MAX_TERMS = 256
"""Alternatives that one place of a schema may come to."""
_TYPES = frozenset("string integer number boolean object array null".split())


class Lowering:
    """Terms of nodes and of conjunctions of nodes, each worked out once.

    ``closed``: an object whose schema lists properties and says nothing of others has no others.
    """

    def __init__(self, document: Document, *, closed: bool) -> None:
        self.document = document
        self.closed = closed
        self.values = Values(self)
        self.tracked = _mentions(document.root, ("unevaluatedProperties", "unevaluatedItems"))
        self._nodes: dict[Node, tuple[Term, ...]] = {}
        self._conjs: dict[Conj, tuple[Term, ...]] = {(): ANY_TERMS}
        self._open: set[Node] = set()
        self.place = ""
        """Where the schema says what is being worked out."""

    def conj(self, conj: Conj) -> tuple[Term, ...]:
        """The terms of nodes that hold together."""
        if conj not in self._conjs:
            terms: tuple[Term, ...] = ANY_TERMS
            for node in conj:
                terms = self.meet(terms, self.node(node), node.pointer)
            self._conjs[conj] = terms
        return self._conjs[conj]

    def node(self, node: Node) -> tuple[Term, ...]:
        if node not in self._nodes:
            if node in self._open:
                self.document.fail("invalid", node.pointer, "refers to itself without end")
            self._open.add(node)
            outer, self.place = self.place, node.pointer
            try:
                self._nodes[node] = self._lower(node)
            finally:
                self._open.discard(node)
                self.place = outer
        return self._nodes[node]

    def meet(
        self, left: tuple[Term, ...], right: tuple[Term, ...], pointer: str
    ) -> tuple[Term, ...]:
        """Values of both sides."""
        if left is ANY_TERMS or right is ANY_TERMS:
            return right if left is ANY_TERMS else left
        found: dict[Term, None] = {}
        limits.check()
        for a in left:
            for b in right:
                both = self._meet(a, b)
                if both is not None:
                    found[both] = None
            if len(found) > MAX_TERMS:
                self.too_many(pointer)
        return tuple(found)

    def union(self, branches: list[tuple[Term, ...]], pointer: str) -> tuple[Term, ...]:
        found = dict.fromkeys(term for terms in branches for term in terms)
        if len(found) > MAX_TERMS * 16:
            self.too_many(pointer)
        return tuple(found)

    def too_many(self, pointer: str) -> None:
        self.document.fail(
            "unsupported", pointer, f"combines to more than {MAX_TERMS} alternatives"
        )

    def _meet(self, a: Term, b: Term) -> Term | None:
        if isinstance(a, Const) or isinstance(b, Const):
            const, other = (a, b) if isinstance(a, Const) else (b, a)
            assert isinstance(const, Const)
            return const if self.values.term_holds(const.value, other) else None
        return meet(a, b)

    def _lower(self, node: Node) -> tuple[Term, ...]:
        if node.pointer == "!never":
            return ANY_TERMS if node.negated else ()
        if node.negated:
            return negated(self, self.node(node.opposite()), node.pointer)
        schema = self.document.at(node.pointer)
        if isinstance(schema, bool):
            return ANY_TERMS if schema else ()
        if not isinstance(schema, Mapping):
            self.document.fail("invalid", node.pointer, "must be a schema: an object or a boolean")
        keywords.check_known(self.document, schema, node.pointer)
        terms = self.typed(schema, node.pointer)
        for name, lowered in keywords.LOCAL.items():
            if name in schema:
                at = below(node.pointer, name)
                terms = self.meet(terms, lowered(self, schema, node.pointer), at)
        terms = self._listed(schema, node.pointer, terms)
        for name in schema:
            if name in applied.APPLIED:
                branches = applied.APPLIED[name](self, schema, node.pointer)
                terms = self.meet(terms, branches, below(node.pointer, name))
        return applied.unevaluated(self, schema, node.pointer, terms)

    def typed(self, schema: Mapping[str, Any], pointer: str) -> tuple[Term, ...]:
        """Values of the types that ``schema`` itself names."""
        if "type" not in schema:
            return ANY_TERMS
        given = schema["type"]
        names = given if isinstance(given, list) else [given]
        wrong = [name for name in names if not isinstance(name, str) or name not in _TYPES]
        if wrong or not names:
            self.document.fail("invalid", below(pointer, "type"), f"is {given!r}, which is no type")
        terms = [term for term in ANY_TERMS if type_of(term) in names]
        if "integer" in names and "number" not in names:
            terms.append(Num(kind="int"))
        return tuple(terms)

    def _listed(
        self, schema: Mapping[str, Any], pointer: str, terms: tuple[Term, ...]
    ) -> tuple[Term, ...]:
        """``const`` and ``enum``."""
        if "const" in schema:
            terms = self.meet(terms, (Const.of(schema["const"]),), below(pointer, "const"))
        if "enum" in schema:
            values = schema["enum"]
            if not isinstance(values, list):
                self.document.fail("invalid", below(pointer, "enum"), "must be a list of values")
            listed = dict.fromkeys(Const.of(value) for value in values)
            terms = tuple(listed) if terms is ANY_TERMS else self._kept(tuple(listed), terms)
        return terms

    def _kept(self, listed: tuple[Const, ...], terms: tuple[Term, ...]) -> tuple[Term, ...]:
        kept: list[Term] = []
        for const in listed:
            limits.check()
            if any(self.values.term_holds(const.value, term) for term in terms):
                kept.append(const)
        return tuple(kept)


def _mentions(value: Any, names: tuple[str, ...]) -> bool:
    if isinstance(value, Mapping):
        return any(n in value for n in names) or any(_mentions(v, names) for v in value.values())
    return isinstance(value, list) and any(_mentions(v, names) for v in value)


__all__ = ["NULL", "Lowering"]
