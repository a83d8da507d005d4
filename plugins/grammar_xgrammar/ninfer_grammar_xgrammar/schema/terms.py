"""What a schema comes to: alternatives, each for values of one type, that know how to be both."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, TypeVar

from ninfer_grammar_xgrammar.numbers import Bound
from ninfer_grammar_xgrammar.schema.document import NEVER, Conj, joined

Value = Any
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Const:
    """One value. ``text`` is its canonical JSON, by which values are compared."""

    text: str
    value: Value = field(compare=False)

    @classmethod
    def of(cls, value: Value) -> Const:
        return cls(canonical(value, sort=True), value)

    @property
    def type(self) -> str:
        return json_type(self.value)


@dataclass(frozen=True, slots=True)
class Num:
    """``kind``: any | int | frac (not whole)."""

    low: Bound | None = None
    high: Bound | None = None
    kind: str = "any"


@dataclass(frozen=True, slots=True)
class Str:
    """``patterns`` are found in the text, ``avoided`` are not, ``without`` are texts it is not."""

    low: int = 0
    high: int | None = None
    patterns: tuple[str, ...] = ()
    avoided: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Items:
    """What holds at index ``start``, or from it on with ``onward``."""

    start: int
    onward: bool
    conj: Conj

    def at(self, index: int) -> bool:
        return index >= self.start if self.onward else index == self.start


@dataclass(frozen=True, slots=True)
class Contains:
    """``low`` to ``high`` elements satisfy ``conj``."""

    conj: Conj
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Arr:
    """``seen``: how many first elements are evaluated, None for all of them; ``seen_by``: elements
    that satisfy one of these are too."""

    rules: tuple[Items, ...] = ()
    low: int = 0
    high: int | None = None
    contains: tuple[Contains, ...] = ()
    seen: int | None = 0
    seen_by: tuple[Conj, ...] = ()

    def conj(self, index: int) -> Conj:
        return joined(*(rule.conj for rule in self.rules if rule.at(index)))


@dataclass(frozen=True, slots=True)
class Member:
    """What holds for members of an object: the one called ``name``; those whose name ``pattern`` is
    found in; or with neither, those that ``names`` and ``patterns`` leave over. ``declared``: the
    schema lists the name among its properties."""

    conj: Conj
    name: str | None = None
    pattern: str | None = None
    names: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    declared: bool = False


@dataclass(frozen=True, slots=True)
class Obj:
    """``keys``: what the names satisfy. ``seen`` and ``seen_patterns``: members that are evaluated;
    ``seen_all``: all are. ``low_at``: the pointer of what asks for ``low`` members."""

    rules: tuple[Member, ...] = ()
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    keys: Conj = ()
    seen: frozenset[str] = frozenset()
    seen_patterns: tuple[str, ...] = ()
    seen_all: bool = False
    low_at: str = field(default="", compare=False)

    @property
    def names(self) -> list[str]:
        """Names that something is said about, declared ones first, in order."""
        listed = [r.name for r in self.rules if r.name is not None and r.declared]
        others = [r.name for r in self.rules if r.name is not None]
        return list(dict.fromkeys([*listed, *others, *self.required]))


Term = Const | Num | Str | Arr | Obj


def type_of(term: Term) -> str:
    if isinstance(term, Const):
        return term.type
    return {Num: "number", Str: "string", Arr: "array", Obj: "object"}[type(term)]


def json_type(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "number"
    return "object" if isinstance(value, dict) else "array"


def canonical(value: Value, *, sort: bool = False) -> str:
    """Compact JSON with whole numbers written as such; ``sort``: members by name."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), sort_keys=sort)


def _plain(value: Value) -> Value:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def meet(a: Term, b: Term) -> Term | None:
    """Values of both; None if there are none. Constants are the caller's work."""
    if isinstance(a, Num) and isinstance(b, Num):
        return _meet_num(a, b)
    if isinstance(a, Str) and isinstance(b, Str):
        low, high = max(a.low, b.low), _least(a.high, b.high)
        if high is not None and low > high:
            return None
        return Str(
            low,
            high,
            _both(a.patterns, b.patterns),
            _both(a.avoided, b.avoided),
            _both(a.without, b.without),
        )
    if isinstance(a, Arr) and isinstance(b, Arr):
        return _meet_arr(a, b)
    if isinstance(a, Obj) and isinstance(b, Obj):
        return _meet_obj(a, b)
    return None


def _meet_num(a: Num, b: Num) -> Num | None:
    kinds = {a.kind, b.kind} - {"any"}
    if len(kinds) > 1:
        return None
    lows = [x.low for x in (a, b) if x.low is not None]
    highs = [x.high for x in (a, b) if x.high is not None]
    low = max(lows, key=lambda x: (x.value, x.open), default=None)
    high = min(highs, key=lambda x: (x.value, not x.open), default=None)
    if low is not None and high is not None:
        shut = low.open or high.open
        if low.value > high.value or (shut and low.value == high.value):
            return None
    return Num(low, high, kinds.pop() if kinds else "any")


def _meet_arr(a: Arr, b: Arr) -> Arr | None:
    low, high = max(a.low, b.low), _least(a.high, b.high)
    if high is not None and low > high:
        return None
    return Arr(
        _both(a.rules, b.rules),
        low,
        high,
        _both(a.contains, b.contains),
        None if a.seen is None or b.seen is None else max(a.seen, b.seen),
        _both(a.seen_by, b.seen_by),
    )


def _meet_obj(a: Obj, b: Obj) -> Obj | None:
    low, high = max(a.low, b.low), _least(a.high, b.high)
    required = _both(a.required, b.required)
    if high is not None and max(low, len(required)) > high:
        return None
    absent = {r.name for r in (*a.rules, *b.rules) if NEVER in r.conj}
    if absent & set(required):
        return None
    return Obj(
        _both(a.rules, b.rules),
        required,
        low,
        high,
        joined(a.keys, b.keys),
        a.seen | b.seen,
        _both(a.seen_patterns, b.seen_patterns),
        a.seen_all or b.seen_all,
        a.low_at if a.low >= b.low else b.low_at,
    )


def _both(a: tuple[_T, ...], b: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys((*a, *b)))


def _least(a: int | None, b: int | None) -> int | None:
    return min((x for x in (a, b) if x is not None), default=None)


def number(value: Value) -> Decimal:
    """A number of JSON, as exact as it was read."""
    return Decimal(str(value)) if isinstance(value, float) else Decimal(value)


def unseen(terms: Iterable[Term], conj: Conj, *, objects: bool) -> tuple[Term, ...]:
    """``terms`` with ``conj`` for the members, or elements, that nothing else evaluated."""
    result: list[Term] = []
    for term in terms:
        if objects and isinstance(term, Obj) and not term.seen_all:
            rest = Member(conj, names=term.seen, patterns=term.seen_patterns)
            term = replace(term, rules=(*term.rules, rest), seen_all=True)
        elif not objects and isinstance(term, Arr) and term.seen is not None:
            term = replace(term, rules=(*term.rules, Items(term.seen, True, conj)), seen=None)
        result.append(term)
    return tuple(result)


NULL, TRUE, FALSE = Const.of(None), Const.of(True), Const.of(False)
ANY_TERMS: tuple[Term, ...] = (NULL, TRUE, FALSE, Num(), Str(), Arr(), Obj())
