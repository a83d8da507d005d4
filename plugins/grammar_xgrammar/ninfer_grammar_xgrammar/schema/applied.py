"""Keywords that combine schemas."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ninfer_grammar_xgrammar.schema.document import Conj, Node, below
from ninfer_grammar_xgrammar.schema.keywords import absent, others
from ninfer_grammar_xgrammar.schema.negate import negated
from ninfer_grammar_xgrammar.schema.terms import ANY_TERMS, Arr, Obj, Term, type_of, unseen

if TYPE_CHECKING:
    from ninfer_grammar_xgrammar.schema.lower import Lowering

Schema = Mapping[str, Any]
_MAX_TRACKED = 5
"""Branches of an ``anyOf`` whose subsets are told apart for ``unevaluated...``."""


def _branches(self: Lowering, schema: Schema, pointer: str, name: str) -> list[Node]:
    listed, at = schema[name], below(pointer, name)
    if not isinstance(listed, list) or not listed:
        self.document.fail("invalid", at, "must be a list of schemas with at least one entry")
    return [Node(below(at, index)) for index in range(len(listed))]


def _ref(self: Lowering, schema: Schema, pointer: str) -> tuple[Term, ...]:
    target = self.document.target(schema["$ref"], below(pointer, "$ref"))
    return self.node(Node(target))


def _all_of(self: Lowering, schema: Schema, pointer: str) -> tuple[Term, ...]:
    terms: tuple[Term, ...] = ANY_TERMS
    for node in _branches(self, schema, pointer, "allOf"):
        terms = self.meet(terms, self.node(node), node.pointer)
    return terms


def _any_of(self: Lowering, schema: Schema, pointer: str) -> tuple[Term, ...]:
    nodes, at = _branches(self, schema, pointer, "anyOf"), below(pointer, "anyOf")
    if not self.tracked:
        return self.union([self.node(node) for node in nodes], at)
    if len(nodes) > _MAX_TRACKED:
        self.document.fail(
            "unsupported", at, f"has more than {_MAX_TRACKED} branches beside unevaluated..."
        )
    subsets = []
    for count in range(1, len(nodes) + 1):
        for chosen in itertools.combinations(nodes, count):
            terms: tuple[Term, ...] = ANY_TERMS
            for node in chosen:
                terms = self.meet(terms, self.node(node), at)
            subsets.append(terms)
    return self.union(subsets, at)


def _one_of(self: Lowering, schema: Schema, pointer: str) -> tuple[Term, ...]:
    """The branches as they are where no two have a value in common; else each without the others,
    where their opposites can be written down."""
    nodes, at = _branches(self, schema, pointer, "oneOf"), below(pointer, "oneOf")
    typed = self.typed(schema, pointer)
    terms = [self.meet(typed, self.node(node), at) for node in nodes]
    result = []
    for index, mine in enumerate(terms):
        for other, theirs in enumerate(terms):
            if other != index and self.values.overlap(terms[index], theirs, at):
                mine = self.meet(mine, negated(self, theirs, at), at)
        result.append(mine)
    return self.union(result, at)


def _not(self: Lowering, schema: Schema, pointer: str) -> tuple[Term, ...]:
    at = below(pointer, "not")
    return negated(self, self.node(Node(at)), at)


def _if(self: Lowering, schema: Schema, pointer: str) -> tuple[Term, ...]:
    if "then" not in schema and "else" not in schema and not self.tracked:
        return ANY_TERMS
    at = below(pointer, "if")
    holds = self.node(Node(at))
    if "then" not in schema and "else" not in schema:
        return self.union([holds, ANY_TERMS], at)
    then = self.node(Node(below(pointer, "then"))) if "then" in schema else ANY_TERMS
    other = self.node(Node(below(pointer, "else"))) if "else" in schema else ANY_TERMS
    fails = self.meet(negated(self, holds, at), other, at)
    return self.union([self.meet(holds, then, at), fails], at)


def _dependent_schemas(self: Lowering, schema: Schema, pointer: str) -> tuple[Term, ...]:
    at = below(pointer, "dependentSchemas")
    if not isinstance(schema["dependentSchemas"], Mapping):
        self.document.fail("invalid", at, "must map names to schemas")
    terms: tuple[Term, ...] = ANY_TERMS
    for name in schema["dependentSchemas"]:
        present = self.meet((Obj(required=(name,)),), self.node(Node(below(at, name))), at)
        terms = self.meet(terms, (*others(absent(name)), *present), at)
    return terms


def unevaluated(
    self: Lowering, schema: Schema, pointer: str, terms: tuple[Term, ...]
) -> tuple[Term, ...]:
    """Apply ``unevaluatedProperties`` and ``unevaluatedItems`` to what the rest left over."""
    if "unevaluatedProperties" in schema:
        conj = (Node(below(pointer, "unevaluatedProperties")),)
        terms = unseen(terms, conj, objects=True)
    if "unevaluatedItems" in schema:
        at = below(pointer, "unevaluatedItems")
        conj = (Node(at),)
        if any(isinstance(t, Arr) and t.seen_by and t.seen is not None for t in terms):
            self.document.fail("unsupported", at, "stands beside contains")
        terms = unseen(terms, conj, objects=False)
    return terms


APPLIED: dict[str, Callable[[Lowering, Schema, str], tuple[Term, ...]]] = {
    "$ref": _ref,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "dependentSchemas": _dependent_schemas,
}

__all__ = ["APPLIED", "Conj", "type_of", "unevaluated"]
