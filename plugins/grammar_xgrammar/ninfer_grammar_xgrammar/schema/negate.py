"""The opposite of terms, where it can be written down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_grammar_xgrammar.numbers import Bound
from ninfer_grammar_xgrammar.schema.document import NEVER, Conj
from ninfer_grammar_xgrammar.schema.terms import (
    ANY_TERMS,
    Arr,
    Const,
    Contains,
    Items,
    Member,
    Num,
    Obj,
    Str,
    Term,
    number,
    type_of,
)

if TYPE_CHECKING:
    from ninfer_grammar_xgrammar.schema.lower import Lowering


def negated(lowering: Lowering, terms: tuple[Term, ...], pointer: str) -> tuple[Term, ...]:
    """Values of none of ``terms``. Raises InvalidSchema at ``pointer`` where no grammar says it."""
    result: tuple[Term, ...] = ANY_TERMS
    for term in terms:
        rest = tuple(t for t in ANY_TERMS if type_of(t) != type_of(term) or _other_const(t, term))
        result = lowering.meet(result, (*rest, *_inside(lowering, term, pointer)), pointer)
    return result


def _other_const(candidate: Term, term: Term) -> bool:
    return isinstance(candidate, Const) and isinstance(term, Const) and candidate != term


def _inside(lowering: Lowering, term: Term, pointer: str) -> list[Term]:
    """Values of the term's own type that are not its own; constants null, true, false aside."""
    if isinstance(term, Const):
        return _not_const(lowering, term, pointer)
    if isinstance(term, Num):
        return _not_number(term)
    if isinstance(term, Str):
        return _not_string(term)
    if isinstance(term, Arr):
        return _not_array(lowering, term, pointer)
    return _not_object(lowering, term, pointer)


def _not_const(lowering: Lowering, term: Const, pointer: str) -> list[Term]:
    value = term.value
    if value is None or isinstance(value, bool):
        return []
    if isinstance(value, str):
        return [Str(without=(value,))]
    if isinstance(value, int | float):
        bound = Bound(number(value), True)
        return [Num(high=bound), Num(low=bound)]
    if not value:
        return [Arr(low=1)] if isinstance(value, list) else [Obj(low=1)]
    return _impossible(lowering, pointer, "a list or an object as a constant")


def _not_number(term: Num) -> list[Term]:
    result: list[Term] = []
    if term.low is not None:
        result.append(Num(high=Bound(term.low.value, not term.low.open)))
    if term.high is not None:
        result.append(Num(low=Bound(term.high.value, not term.high.open)))
    if term.kind != "any":
        result.append(Num(kind="frac" if term.kind == "int" else "int"))
    return result


def _not_string(term: Str) -> list[Term]:
    result: list[Term] = []
    if term.low:
        result.append(Str(high=term.low - 1))
    if term.high is not None:
        result.append(Str(low=term.high + 1))
    result += [Str(avoided=(pattern,)) for pattern in term.patterns]
    result += [Str(patterns=(pattern,)) for pattern in term.avoided]
    result += [Const.of(text) for text in term.without]
    return result


def _not_array(lowering: Lowering, term: Arr, pointer: str) -> list[Term]:
    result: list[Term] = []
    if term.low:
        result.append(Arr(high=term.low - 1))
    if term.high is not None:
        result.append(Arr(low=term.high + 1))
    for rule in term.rules:
        for conj in _opposites(lowering, rule.conj):
            if not rule.onward:
                item = Items(rule.start, False, conj)
                result.append(Arr(rules=(item,), low=rule.start + 1))
            elif rule.start == 0:
                result.append(Arr(contains=(Contains(conj, 1, None),)))
            elif rule.conj == (NEVER,):
                result.append(Arr(low=rule.start + 1))
            else:
                _impossible(lowering, pointer, "items after prefixItems")
    for contains in term.contains:
        if contains.low:
            result.append(Arr(contains=(Contains(contains.conj, 0, contains.low - 1),)))
        if contains.high is not None:
            result.append(Arr(contains=(Contains(contains.conj, contains.high + 1, None),)))
    return result


def _not_object(lowering: Lowering, term: Obj, pointer: str) -> list[Term]:
    result: list[Term] = []
    if term.low:
        result.append(Obj(high=term.low - 1))
    if term.high is not None:
        result.append(Obj(low=term.high + 1, low_at=pointer))
    result += [Obj(rules=(Member((NEVER,), name=name),)) for name in term.required]
    for rule in term.rules:
        for conj in _opposites(lowering, rule.conj):
            if rule.name is None:
                _impossible(lowering, pointer, "patternProperties or additionalProperties")
            result.append(Obj(rules=(Member(conj, name=rule.name),), required=(rule.name or "",)))
    if _opposites(lowering, term.keys):
        _impossible(lowering, pointer, "propertyNames")
    return result


def _opposites(lowering: Lowering, conj: Conj) -> list[Conj]:
    """One for each node of ``conj`` that says anything."""
    return [(node.opposite(),) for node in conj if lowering.node(node) is not ANY_TERMS]


def _impossible(lowering: Lowering, pointer: str, what: str) -> list[Term]:
    lowering.document.fail(
        "unsupported", pointer, f"needs the opposite of {what}, which no grammar here says"
    )
