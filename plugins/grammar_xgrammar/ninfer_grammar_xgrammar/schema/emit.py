"""From terms to rules of a grammar."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from ninfer_grammar_xgrammar import automata, limits, regex
from ninfer_grammar_xgrammar.dialects import Reading
from ninfer_grammar_xgrammar.nodes import NEVER as NO_TEXT
from ninfer_grammar_xgrammar.nodes import Grammar, Node, Ref, alt, seq
from ninfer_grammar_xgrammar.regex import ANY, RegexError, Times
from ninfer_grammar_xgrammar.schema import arrays, objects, texts
from ninfer_grammar_xgrammar.schema.document import Conj, Document
from ninfer_grammar_xgrammar.schema.document import Node as SchemaNode
from ninfer_grammar_xgrammar.schema.lower import Lowering
from ninfer_grammar_xgrammar.schema.terms import ANY_TERMS, Arr, Const, Num, Str, Term
from ninfer_grammar_xgrammar.spelling import Form, spell

MAX_RULES = 8_192

ROOT: Conj = (SchemaNode(""),)


def schema_rule(schema: Any, param: str, grammar: Grammar, *, closed: bool) -> Ref:
    """A rule for the JSON texts that are valid under ``schema``.

    Raises InvalidSchema with a pointer for a schema that is malformed, or that says what no grammar
    here enforces.
    """
    emitter = Emitter(Lowering(Document(schema, param), closed=closed), grammar)
    root = emitter.value(ROOT)
    emitter.drain()
    return root


class Emitter:
    """Writes one rule per conjunction of subschemas."""

    def __init__(self, lowering: Lowering, grammar: Grammar) -> None:
        self.lowering = lowering
        self.grammar = grammar
        self._rules: dict[Conj, Ref] = {}
        self._strings: dict[Str, Node] = {}
        self._pending: list[Callable[[], None]] = []
        self._at: Conj = ROOT

    def value(self, conj: Conj) -> Ref:
        conj = tuple(n for n in conj if self.lowering.node(n) is not ANY_TERMS)
        if not conj:
            return texts.any_value(self.grammar)
        if conj not in self._rules:
            if len(self.grammar.rules) > MAX_RULES:
                self.fail("unsupported", conj, f"comes to more than {MAX_RULES} rules")
            self._rules[conj] = self.rule("value", lambda: self._alternatives(conj))
        return self._rules[conj]

    def rule(self, prefix: str, body: Callable[[], Node]) -> Ref:
        """A rule whose ``body`` is worked out later: no call nests as deep as the schema then."""
        ref = self.grammar.add(prefix, NO_TEXT)
        self._pending.append(partial(self._fill, ref.name, body, self._at))
        return ref

    def drain(self) -> None:
        """Work out what is pending."""
        while self._pending:
            limits.check()
            self._pending.pop()()

    def _fill(self, name: str, body: Callable[[], Node], at: Conj) -> None:
        """``at``: where the schema says what the rule says."""
        self._at = at
        self.lowering.place = at[0].pointer if at else ""
        try:
            self.grammar.rules[name] = body()
        except RegexError as error:
            self.fail("unsupported", self._at, f"has a pattern that cannot be enforced: {error}")

    def _alternatives(self, conj: Conj) -> Node:
        self._at = conj
        return alt(*(self.term(term, conj) for term in self.lowering.conj(conj)))

    def never(self, conj: Conj) -> bool:
        """Whether it is plain that nothing satisfies ``conj``."""
        return bool(conj) and not self.lowering.conj(conj)

    def term(self, term: Term, conj: Conj) -> Node:
        if isinstance(term, Const):
            return texts.literal(term.value)
        if isinstance(term, Num):
            return texts.number(term)
        if isinstance(term, Str):
            return self.string(term)
        if isinstance(term, Arr):
            return arrays.array(self, term)
        return objects.obj(self, term)

    def string(self, term: Str) -> Node:
        if term == Str():
            return texts.any_string(self.grammar)
        if term not in self._strings:
            rule = self.grammar.add("string", text_rule(term, self.grammar, Form.JSON, '"', '"'))
            self._strings[term] = rule
        return self._strings[term]

    def fail(self, kind: str, conj: Conj, why: str) -> NoReturn:
        self.lowering.document.fail(kind, conj[0].pointer, why)


def text_rule(term: Str, grammar: Grammar, form: Form, start: str, close: str) -> Node:
    """The texts of ``term`` between ``start`` and ``close``. Raises RegexError."""
    plain = not (term.avoided or term.without)
    limits = Times(ANY, term.low, term.high)
    limited = term.low > 0 or term.high is not None
    if plain and not term.patterns:
        return seq(start, spell(limits, form), close)
    if plain and len(term.patterns) == 1 and not limited:
        return seq(start, automata.spelled(regex.search(term.patterns[0]), grammar, form, close))
    wanted = [regex.search(pattern) for pattern in term.patterns]
    wanted += [limits] if limited or not wanted else []
    unwanted = [regex.search(pattern, Reading.EITHER) for pattern in term.avoided]
    if term.without:
        unwanted.append(regex.Or(tuple(regex.literal(text) for text in term.without)))
    machine = automata.combine(wanted, unwanted)
    if machine.empty:
        return NO_TEXT
    return seq(start, automata.to_rules(machine, grammar, form, close))
