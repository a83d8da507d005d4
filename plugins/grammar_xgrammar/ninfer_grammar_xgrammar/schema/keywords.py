"""Keywords that speak about values of one type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ninfer_grammar_xgrammar import regex
from ninfer_grammar_xgrammar.numbers import MAX_DIGITS, Bound
from ninfer_grammar_xgrammar.regex import RegexError
from ninfer_grammar_xgrammar.schema.document import NEVER, Conj, Document, Node, below
from ninfer_grammar_xgrammar.schema.terms import (
    ANY_TERMS,
    Arr,
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

Schema = Mapping[str, Any]
Lowered = Callable[["Lowering", Schema, str], tuple[Term, ...]]

ANNOTATIONS = frozenset(
    "$schema $comment $defs definitions $anchor title description default examples deprecated "
    "readOnly writeOnly".split()
)
"""Keywords that constrain nothing."""
HANDLED = frozenset(
    "type const enum minimum maximum exclusiveMinimum exclusiveMaximum minLength maxLength pattern "
    "items prefixItems minItems maxItems contains minContains maxContains uniqueItems properties "
    "patternProperties additionalProperties required minProperties maxProperties propertyNames "
    "dependentRequired dependentSchemas anyOf oneOf allOf not if then else $ref "
    "unevaluatedProperties unevaluatedItems".split()
)
_DIALECTS = ("json-schema.org/draft/2020-12/schema", "json-schema.org/draft/2019-09/schema")
_OLD_DIALECTS = ("json-schema.org/draft-07/schema", "json-schema.org/draft-06/schema")
MAX_LENGTH = 16_384
MAX_COUNT = 1_024
MAX_MEMBERS = 512


def check_known(document: Document, schema: Schema, pointer: str) -> None:
    """Refuse every keyword that is not worked out, by name."""
    for name in schema:
        if name in ANNOTATIONS or name in HANDLED or (name == "$id" and not pointer):
            continue
        document.fail(
            "unsupported", below(pointer, name), "is a keyword that is not enforced; leave it out"
        )
    if "$schema" in schema:
        dialect = str(schema["$schema"]).rstrip("#").partition("://")[2]
        if dialect not in (*_DIALECTS, *_OLD_DIALECTS):
            document.fail("unsupported", below(pointer, "$schema"), "is not a dialect known here")


def others(term: Term) -> tuple[Term, ...]:
    """``term``, and everything of another type."""
    return (*(t for t in ANY_TERMS if type_of(t) != type_of(term)), term)


def _count(document: Document, schema: Schema, pointer: str, name: str, most: int) -> int | None:
    if name not in schema:
        return None
    value = schema[name]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value < 0 or value % 1:
        document.fail("invalid", below(pointer, name), "must be a whole number of at least 0")
    if value > most:
        document.fail("unsupported", below(pointer, name), f"is more than {most}")
    return int(value)


def _numbers(self: Lowering, schema: Schema, pointer: str) -> tuple[Term, ...]:
    low = _bound(self, schema, pointer, "minimum", False)
    low = _bound(self, schema, pointer, "exclusiveMinimum", True, low)
    high = _bound(self, schema, pointer, "maximum", False)
    high = _bound(self, schema, pointer, "exclusiveMaximum", True, high)
    terms: tuple[Term, ...] = ANY_TERMS
    for bound, lower in ((low, True), (high, False)):
        if bound is not None:
            term = Num(low=bound) if lower else Num(high=bound)
            terms = self.meet(terms, others(term), pointer)
    return terms


def _bound(
    self: Lowering, schema: Schema, pointer: str, name: str, open: bool, other: Bound | None = None
) -> Bound | None:
    if name not in schema:
        return other
    value, at = schema[name], below(pointer, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        self.document.fail("invalid", at, "must be a number")
    exact = number(value)
    if not exact.is_finite() or len(f"{exact:f}") > 2 * MAX_DIGITS:
        self.document.fail("unsupported", at, f"has more than {MAX_DIGITS} digits")
    bound = Bound(exact, open)
    if other is None or other.value == bound.value:
        return bound if other is None else Bound(exact, True)
    lower = "Min" in name
    return max(bound, other, key=_value) if lower else min(bound, other, key=_value)


def _value(bound: Bound) -> Decimal:
    return bound.value


def _lengths(self: Lowering, schema: Schema, pointer: str) -> tuple[Term, ...]:
    low = _count(self.document, schema, pointer, "minLength", MAX_LENGTH) or 0
    high = _count(self.document, schema, pointer, "maxLength", MAX_LENGTH)
    if high is not None and low > high:
        return tuple(t for t in ANY_TERMS if type_of(t) != "string")
    return others(Str(low, high))


def _pattern(self: Lowering, schema: Schema, pointer: str) -> tuple[Term, ...]:
    return others(
        Str(patterns=(checked_pattern(self.document, schema["pattern"], pointer, "pattern"),))
    )


def checked_pattern(document: Document, value: Any, pointer: str, *keys: str) -> str:
    at = below(pointer, *keys)
    if not isinstance(value, str):
        document.fail("invalid", at, "must be a regular expression as text")
    try:
        regex.search(value)
    except RegexError as error:
        kind = "invalid" if error.invalid else "unsupported"
        document.fail(kind, at, f"is the regular expression {value!r}: {error}")
    return value


def _array(self: Lowering, schema: Schema, pointer: str) -> tuple[Term, ...]:
    document, rules = self.document, []
    seen: int | None = 0
    prefix = schema.get("prefixItems", [])
    if not isinstance(prefix, list) or ("prefixItems" in schema and not prefix):
        document.fail("invalid", below(pointer, "prefixItems"), "must be a list of schemas")
    for index in range(len(prefix)):
        rules += [Items(index, False, (Node(below(pointer, "prefixItems", index)),))]
    seen = len(prefix)
    if "items" in schema:
        if isinstance(schema["items"], list):
            document.fail("unsupported", below(pointer, "items"), "is a list; use prefixItems")
        rules.append(Items(len(prefix), True, (Node(below(pointer, "items")),)))
        seen = None
    low = _count(document, schema, pointer, "minItems", MAX_COUNT) or 0
    high = _count(document, schema, pointer, "maxItems", MAX_COUNT)
    contains, seen_by = _contains(document, schema, pointer)
    _check_unique(document, schema, pointer, high)
    if high is not None and low > high:
        return tuple(t for t in ANY_TERMS if type_of(t) != "array")
    return others(Arr(tuple(rules), low, high, contains, seen, seen_by))


def _contains(
    document: Document, schema: Schema, pointer: str
) -> tuple[tuple[Contains, ...], tuple[Conj, ...]]:
    low = _count(document, schema, pointer, "minContains", 64)
    high = _count(document, schema, pointer, "maxContains", 64)
    if "contains" not in schema:
        return (), ()
    conj = (Node(below(pointer, "contains")),)
    low = 1 if low is None else low
    return ((Contains(conj, low, high),) if low or high is not None else ()), (conj,)


def _check_unique(document: Document, schema: Schema, pointer: str, high: int | None) -> None:
    unique = schema.get("uniqueItems", False)
    if not isinstance(unique, bool):
        document.fail("invalid", below(pointer, "uniqueItems"), "must be true or false")
    if unique and (high is None or high > 1):
        document.fail(
            "unsupported", below(pointer, "uniqueItems"), "is true, which no grammar can enforce"
        )


def _object(self: Lowering, schema: Schema, pointer: str) -> tuple[Term, ...]:
    document, rules = self.document, []
    properties = _map(document, schema, pointer, "properties")
    if len(properties) > MAX_MEMBERS:
        document.fail(
            "unsupported", below(pointer, "properties"), f"lists over {MAX_MEMBERS} names"
        )
    for name in properties:
        conj = (Node(below(pointer, "properties", name)),)
        rules.append(Member(conj, name=name, declared=True))
    patterns = tuple(_map(document, schema, pointer, "patternProperties"))
    for pattern in patterns:
        checked_pattern(document, pattern, pointer, "patternProperties", pattern)
        at = below(pointer, "patternProperties", pattern)
        rules.append(Member((Node(at),), pattern=pattern))
    rest = "additionalProperties" in schema
    if rest:
        conj = (Node(below(pointer, "additionalProperties")),)
        rules.append(Member(conj, names=frozenset(properties), patterns=patterns))
    low = _count(document, schema, pointer, "minProperties", MAX_COUNT) or 0
    high = _count(document, schema, pointer, "maxProperties", MAX_COUNT)
    required = _names(document, schema.get("required", []), below(pointer, "required"))
    if high is not None and max(low, len(required)) > high:
        return tuple(t for t in ANY_TERMS if type_of(t) != "object")
    keys = (Node(below(pointer, "propertyNames")),) if "propertyNames" in schema else ()
    seen = frozenset(properties)
    at = below(pointer, "minProperties")
    return others(Obj(tuple(rules), required, low, high, keys, seen, patterns, rest, at))


def _map(document: Document, schema: Schema, pointer: str, name: str) -> Mapping[str, Any]:
    value = schema.get(name, {})
    if not isinstance(value, Mapping):
        document.fail("invalid", below(pointer, name), "must map names to schemas")
    return value


def _names(document: Document, value: Any, pointer: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        document.fail("invalid", pointer, "must be a list of property names")
    return tuple(dict.fromkeys(value))


def _dependent_required(self: Lowering, schema: Schema, pointer: str) -> tuple[Term, ...]:
    terms: tuple[Term, ...] = ANY_TERMS
    for name, needed in _map(self.document, schema, pointer, "dependentRequired").items():
        at = below(pointer, "dependentRequired", name)
        names = _names(self.document, needed, at)
        present = Obj(required=tuple(dict.fromkeys((name, *names))))
        terms = self.meet(terms, (*others(absent(name)), present), at)
    return terms


def absent(name: str) -> Obj:
    """Objects without a member ``name``."""
    return Obj(rules=(Member((NEVER,), name=name),))


_OBJECT = "properties patternProperties additionalProperties required minProperties maxProperties"
LOCAL: dict[str, Lowered] = {}
for _group, _function in (
    ("minimum maximum exclusiveMinimum exclusiveMaximum", _numbers),
    ("minLength maxLength", _lengths),
    ("pattern", _pattern),
    ("items prefixItems minItems maxItems contains uniqueItems", _array),
    (f"{_OBJECT} propertyNames", _object),
    ("dependentRequired", _dependent_required),
):
    LOCAL.update(dict.fromkeys(_group.split(), _function))
"""By keyword, what lowers it together with the others of its group."""
