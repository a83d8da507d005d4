"""Whether given values satisfy terms, and whether terms have a value in common."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ninfer_grammar_xgrammar import automata, limits, regex
from ninfer_grammar_xgrammar.dialects import Reading
from ninfer_grammar_xgrammar.schema.document import Conj
from ninfer_grammar_xgrammar.schema.terms import (
    Arr,
    Const,
    Member,
    Num,
    Obj,
    Str,
    Term,
    canonical,
    json_type,
    number,
)

if TYPE_CHECKING:
    from ninfer_grammar_xgrammar.schema.lower import Lowering

_DEPTH = 8
"""Levels that are searched for a contradiction; below, values are taken to exist."""


class Values:
    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering

    def holds(self, value: Any, conj: Conj) -> bool:
        return any(self.term_holds(value, term) for term in self._lowering.conj(conj))

    def term_holds(self, value: Any, term: Term) -> bool:
        if isinstance(term, Const):
            return json_type(value) == term.type and canonical(value, sort=True) == term.text
        kind = json_type(value)
        if isinstance(term, Num):
            return kind == "number" and _in_range(value, term)
        if isinstance(term, Str):
            return kind == "string" and self._fits(value, term)
        if isinstance(term, Arr):
            return kind == "array" and self._array_holds(value, term)
        return kind == "object" and self._object_holds(value, term)

    def members(self, name: str, term: Obj) -> Conj:
        """What the member ``name`` of an object has to satisfy."""
        limits.check()
        found = [rule.conj for rule in term.rules if self.selects(rule, name)]
        return tuple(dict.fromkeys(node for conj in found for node in conj))

    def overlap(self, left: tuple[Term, ...], right: tuple[Term, ...], pointer: str) -> bool:
        """False where certainly no value satisfies both."""
        return any(self.possible(term) for term in self._lowering.meet(left, right, pointer))

    def possible(self, term: Term, depth: int = _DEPTH) -> bool:
        """False where certainly no value satisfies ``term``."""
        if depth == 0:
            return True
        if isinstance(term, Obj):
            return all(
                self._conj_possible(self.members(name, term), depth) for name in term.required
            )
        if isinstance(term, Arr):
            return all(self._conj_possible(term.conj(i), depth) for i in range(min(term.low, 16)))
        return True

    def _conj_possible(self, conj: Conj, depth: int) -> bool:
        return not conj or any(self.possible(t, depth - 1) for t in self._lowering.conj(conj))

    def _array_holds(self, value: list[Any], term: Arr) -> bool:
        if len(value) < term.low or (term.high is not None and len(value) > term.high):
            return False
        for contains in term.contains:
            count = sum(self.holds(item, contains.conj) for item in value)
            if count < contains.low or (contains.high is not None and count > contains.high):
                return False
        return all(self.holds(item, term.conj(index)) for index, item in enumerate(value))

    def _object_holds(self, value: dict[str, Any], term: Obj) -> bool:
        if len(value) < term.low or (term.high is not None and len(value) > term.high):
            return False
        return (
            all(name in value for name in term.required)
            and all(self.holds(name, term.keys) for name in value)
            and all(self.holds(item, self.members(name, term)) for name, item in value.items())
        )

    def selects(self, rule: Member, name: str) -> bool:
        """Whether ``rule`` speaks of the member ``name``."""
        if rule.name is not None:
            return rule.name == name
        if rule.pattern is not None:
            return self._found(rule.pattern, name)
        return name not in rule.names and not any(self._found(p, name) for p in rule.patterns)

    def _fits(self, value: str, term: Str) -> bool:
        return (
            len(value) >= term.low
            and (term.high is None or len(value) <= term.high)
            and value not in term.without
            and all(self._found(pattern, value) for pattern in term.patterns)
            and not any(self._found(pattern, value) for pattern in term.avoided)
        )

    def _found(self, pattern: str, text: str) -> bool:
        """Whether ``pattern`` is found in ``text``. Raises InvalidSchema where that depends on who
        reads it: the answer may be needed either way round."""
        ecma, python = (found(pattern, text, one) for one in (Reading.ECMA, Reading.PYTHON))
        if ecma != python:
            why = f"asks whether {pattern!r} matches {text!r}: ECMA-262 and Python's re differ"
            self._lowering.document.fail("unsupported", self._lowering.place, why)
        return ecma


@lru_cache(maxsize=1024)
def found(pattern: str, text: str, reading: Reading) -> bool:
    """Whether ``pattern`` is found in ``text``."""
    return automata.matches(regex.search(pattern, reading), text)


def _in_range(value: float, term: Num) -> bool:
    exact = number(value)
    if term.kind != "any" and (exact == exact.to_integral_value()) != (term.kind == "int"):
        return False
    if term.low is not None and (
        exact < term.low.value or (term.low.open and exact == term.low.value)
    ):
        return False
    high = term.high
    return high is None or exact < high.value or (exact == high.value and not high.open)
