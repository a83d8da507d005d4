"""Objects as rules: members in the declared order, then others."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from ninfer_grammar_xgrammar.nodes import NEVER, Node, Ref, alt, seq
from ninfer_grammar_xgrammar.schema import texts
from ninfer_grammar_xgrammar.schema.document import joined
from ninfer_grammar_xgrammar.schema.terms import Const, Member, Obj, Str
from ninfer_grammar_xgrammar.schema.texts import COLON, COMMA
from ninfer_grammar_xgrammar.spelling import Form, spell_text

if TYPE_CHECKING:
    from ninfer_grammar_xgrammar.schema.emit import Emitter

MAX_PATTERNS = 4
MAX_STATES = 8_192


def obj(emitter: Emitter, term: Obj) -> Node:
    if term == Obj():
        return texts.any_object(emitter.grammar)
    return seq("{", _Chain(emitter, term).state(0, True, 0))


class _Chain:
    """Rules of what may follow the first ``index`` names, with ``count`` members so far; ``first``:
    there is none yet."""

    def __init__(self, emitter: Emitter, term: Obj) -> None:
        self._emitter = emitter
        self._term = term
        self._values = emitter.lowering.values
        self._names = [*term.names, *_listed_keys(emitter, term)]
        self._members = {name: self._member(name) for name in self._names}
        self._extras: list[Node] | None = None
        low = term.low if term.low > len(term.required) else 0
        self._low = low
        self._cap = max(low, -1 if term.high is None else term.high)
        self._rules: dict[tuple[int, bool, int], Ref] = {}
        self._check_distinct(low)

    def _check_distinct(self, low: int) -> None:
        """Members are counted as they are written. Of names that nothing lists one may come again,
        and a reader keeps one of the two: only the first adds a member for certain."""
        certain = len(self._term.required) + 1
        if low > certain and self._others():
            why = f"asks for {low} members where {certain} at most are certain to differ in name"
            mend = "list the names in properties or propertyNames, with additionalProperties false"
            self._emitter.lowering.document.fail("unsupported", self._term.low_at, f"{why}; {mend}")

    def state(self, index: int, first: bool, count: int) -> Node:
        key = (index, first, min(count, self._cap) if self._cap > 0 else 0)
        if key not in self._rules:
            if len(self._rules) > MAX_STATES:
                self._emitter.lowering.document.fail("unsupported", "", "counts too many members")
            self._rules[key] = self._emitter.rule("members", lambda: alt(*self._branches(*key)))
        return self._rules[key]

    def _branches(self, index: int, first: bool, count: int) -> list[Node]:
        comma: Node = seq() if first else COMMA
        full = self._term.high is not None and count >= self._term.high
        if index < len(self._names):
            name, branches = self._names[index], []
            member = self._members[name]
            if member is not None and not full:
                branches.append(seq(comma, member, self.state(index + 1, False, count + 1)))
            if name not in self._term.required:
                branches.append(self.state(index + 1, first, count))
            return branches
        branches = [seq("}")] if count >= self._low else []
        if not full:
            after = self.state(index, False, count + 1) if self._others() else NEVER
            branches += [seq(comma, pair, after) for pair in self._others()]
        return branches

    def _member(self, name: str) -> Node | None:
        """Name and value; None where the member may not be."""
        conj = self._values.members(name, self._term)
        if self._emitter.never(conj) or not self._values.holds(name, self._term.keys):
            return None
        key = '"' + spell_text(name, Form.JSON) + '"'
        return seq(key, COLON, self._emitter.value(conj))

    def _others(self) -> list[Node]:
        """Names that nothing lists, with what their values may be."""
        if self._extras is None:
            self._extras = [] if self._closed() else list(self._other_members())
        return self._extras

    def _closed(self) -> bool:
        rules = self._term.rules
        declared = any(rule.declared for rule in rules)
        rest = any(rule.name is None for rule in rules)
        return self._emitter.lowering.closed and declared and not rest

    def _other_members(self) -> list[Node]:
        patterns = _patterns(self._term)
        if len(patterns) > MAX_PATTERNS:
            self._emitter.lowering.document.fail(
                "unsupported", "", f"has more than {MAX_PATTERNS} patternProperties in one object"
            )
        pairs = []
        for found in itertools.product((True, False), repeat=len(patterns)):
            matched = frozenset(p for p, yes in zip(patterns, found, strict=True) if yes)
            conj = joined(*(r.conj for r in self._term.rules if _speaks(r, matched)))
            if self._emitter.never(conj):
                continue
            keys = self._keys(matched, frozenset(patterns) - matched)
            pairs += [seq(key, COLON, self._emitter.value(conj)) for key in keys]
        return pairs

    def _keys(self, matched: frozenset[str], avoided: frozenset[str]) -> list[Node]:
        result = []
        for term in self._emitter.lowering.conj(self._term.keys):
            if isinstance(term, Str):
                key = Str(
                    term.low,
                    term.high,
                    (*term.patterns, *sorted(matched)),
                    (*term.avoided, *sorted(avoided)),
                    tuple(dict.fromkeys((*term.without, *self._names))),
                )
                text = self._emitter.string(key)
                if not (isinstance(text, Ref) and self._emitter.grammar.rules[text.name] is NEVER):
                    result.append(text)
        return result


def _listed_keys(emitter: Emitter, term: Obj) -> list[str]:
    """Names that ``propertyNames`` lists one by one."""
    terms = emitter.lowering.conj(term.keys) if term.keys else ()
    names = [t.value for t in terms if isinstance(t, Const) and isinstance(t.value, str)]
    return [name for name in dict.fromkeys(names) if name not in term.names]


def _patterns(term: Obj) -> list[str]:
    listed = [rule.pattern for rule in term.rules if rule.pattern is not None]
    return list(dict.fromkeys([*listed, *(p for rule in term.rules for p in rule.patterns)]))


def _speaks(rule: Member, matched: frozenset[str]) -> bool:
    """Whether ``rule`` speaks of an unlisted name in which the ``matched`` patterns are found."""
    if rule.name is not None:
        return False
    if rule.pattern is not None:
        return rule.pattern in matched
    return not matched & frozenset(rule.patterns)
