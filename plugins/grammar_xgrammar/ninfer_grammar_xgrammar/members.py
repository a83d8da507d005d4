"""Members of an object written one by one between marks, as tool calls have them: text as it is,
anything else as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from ninfer_core.contract.errors import InvalidSchema
from ninfer_grammar_xgrammar import automata, charset, regex
from ninfer_grammar_xgrammar.nodes import Chars, Grammar, Many, Node, Ref, alt, optional, seq
from ninfer_grammar_xgrammar.regex import RegexError
from ninfer_grammar_xgrammar.schema.document import Conj, Document
from ninfer_grammar_xgrammar.schema.emit import ROOT, Emitter, text_rule
from ninfer_grammar_xgrammar.schema.lower import Lowering
from ninfer_grammar_xgrammar.schema.terms import Const, Obj, Str, type_of
from ninfer_grammar_xgrammar.spelling import Form

Part = Mapping[str, Any]
_NAME = Many(
    Chars(charset.minus(charset.of("".join(map(chr, range(0x21, 0x7F)))), charset.of("<>"))), 1, 64
)


def members(part: Part, grammar: Grammar) -> Node:
    """``enforce`` true: the schema holds, or is refused; null: it holds where it can be written
    down; false: names are declared ones, values any text."""
    if part["enforce"] is not False:
        rules = dict(grammar.rules)
        try:
            return _Writer(part, grammar).strict()
        except InvalidSchema:
            if part["enforce"]:
                raise
            grammar.rules.clear()
            grammar.rules.update(rules)
    return _loose(part, grammar)


def _loose(part: Part, grammar: Grammar) -> Node:
    before, middle = part["before"]
    schema = part["schema"]
    names = schema.get("properties") if isinstance(schema, Mapping) else None
    value = _any_text(part, grammar)
    if not isinstance(names, Mapping) or not names:
        return optional(seq(before, _NAME, middle, value))  # a second might have the same name
    return seq(*(optional(seq(before + name + middle, value)) for name in names))


class _Writer:
    def __init__(self, part: Part, grammar: Grammar) -> None:
        self._part = part
        self._document = Document(part["schema"], part["param"])
        self._lowering = Lowering(self._document, closed=True)
        self._grammar = grammar
        self._emitter = Emitter(self._lowering, grammar)

    def strict(self) -> Node:
        objects = [t for t in self._lowering.conj(ROOT) if isinstance(t, Obj)]
        if len(objects) != 1:
            self._fail("", "must describe one form of object")
        term = objects[0]
        if term.low > len(term.required) or term.high is not None or term.keys:
            self._fail("", "counts or names the members, which arguments cannot")
        parts = []
        for name in term.names:
            conj = self._lowering.values.members(name, term)
            written = self._member(name, conj)
            parts.append(written if name in term.required else optional(written))
        self._emitter.drain()
        return seq(*parts)

    def _member(self, name: str, conj: Conj) -> Node:
        before, middle = self._part["before"]
        if not re.fullmatch(r"[^<>\n]{1,128}", name):
            self._fail(f"/properties/{name}", "has a name that calls cannot carry")
        return seq(before + name + middle, self._value(conj))

    def _value(self, conj: Conj) -> Node:
        terms = self._lowering.conj(conj)
        texts = [t for t in terms if type_of(t) == "string"]
        if not texts:
            return seq(self._emitter.value(conj), self._part["after"])
        if len(texts) < len(terms):
            at = conj[0].pointer if conj else ""
            self._fail(at, "allows text and other types, which calls cannot tell apart")
        try:
            return alt(*(self._text(term) for term in texts))
        except RegexError as error:
            self._fail(conj[0].pointer, f"has a pattern that cannot be enforced: {error}")

    def _text(self, term: object) -> Node:
        after = self._part["after"]
        if isinstance(term, Const):
            if any(tag in term.value for tag in self._part["tags"]):
                self._fail("", f"has the constant {term.value!r}, which holds a mark of calls")
            return seq(term.value + after)
        assert isinstance(term, Str)
        if term == Str():
            return _any_text(self._part, self._grammar)
        return text_rule(term, self._grammar, Form.TAGGED, "", after)

    def _fail(self, pointer: str, why: str) -> NoReturn:
        self._document.fail("unsupported", pointer, why)


def _any_text(part: Part, grammar: Grammar) -> Node:
    """Text in which no tag stands, and what follows it."""
    name = f"text before {part['after']!r}"
    if name not in grammar.rules:
        tags = [regex.search(re.escape(tag)) for tag in part["tags"]]
        machine = automata.combine([regex.ANYTHING], tags)
        grammar.rules[name] = automata.to_rules(machine, grammar, Form.PLAIN, part["after"])
    return Ref(name)
