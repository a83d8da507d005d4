"""JSON texts that need no schema: white space, constants, and values of any kind."""

from __future__ import annotations

from typing import Any

from ninfer_grammar_xgrammar import numbers
from ninfer_grammar_xgrammar.nodes import NEVER as NO_TEXT
from ninfer_grammar_xgrammar.nodes import Grammar, Loop, Node, Ref, alt, optional, seq
from ninfer_grammar_xgrammar.schema.terms import Num, canonical, json_type
from ninfer_grammar_xgrammar.spelling import ANY_TEXT, Form, quoted, spell_text

COMMA = seq(",", optional(seq(" ")))
COLON = seq(":", optional(seq(" ")))
"""White space in JSON: at most one space after a comma or a colon, so that none runs on."""


def literal(value: Any) -> Node:
    """The JSON texts of one value, with the white space that other values have too."""
    kind = json_type(value)
    if kind == "array":
        return seq("[", _separated([literal(item) for item in value]), "]")
    if kind == "object":
        pairs = [seq(literal(name), COLON, literal(item)) for name, item in value.items()]
        return seq("{", _separated(pairs), "}")
    if kind == "string":
        return seq('"' + spell_text(value, Form.JSON) + '"')
    return seq(canonical(value))


def _separated(items: list[Node]) -> Node:
    parts: list[Node] = []
    for index, item in enumerate(items):
        parts += [COMMA, item] if index else [item]
    return seq(*parts)


def any_string(grammar: Grammar) -> Ref:
    return _shared(grammar, "any_string", quoted(ANY_TEXT))


def any_object(grammar: Grammar) -> Ref:
    if "any_object" not in grammar.rules:
        grammar.rules["any_object"] = NO_TEXT
        pair = seq(any_string(grammar), COLON, any_value(grammar))
        inside = optional(seq(pair, Loop(seq(COMMA, pair))))
        grammar.rules["any_object"] = seq("{", inside, "}")
    return Ref("any_object")


def any_array(grammar: Grammar) -> Ref:
    if "any_array" not in grammar.rules:
        grammar.rules["any_array"] = NO_TEXT
        item = any_value(grammar)
        inside = optional(seq(item, Loop(seq(COMMA, item))))
        grammar.rules["any_array"] = seq("[", inside, "]")
    return Ref("any_array")


def any_value(grammar: Grammar) -> Ref:
    if "any_value" not in grammar.rules:
        grammar.rules["any_value"] = NO_TEXT
        words = (seq("true"), seq("false"), seq("null"))
        number = _shared(grammar, "any_number", numbers.any_number())
        grammar.rules["any_value"] = alt(
            any_string(grammar), number, *words, any_object(grammar), any_array(grammar)
        )
    return Ref("any_value")


def _shared(grammar: Grammar, name: str, node: Node) -> Ref:
    grammar.rules.setdefault(name, node)
    return Ref(name)


def number(term: Num) -> Node:
    if term.low is None and term.high is None:
        if term.kind == "int":
            return numbers.any_integer()
        return numbers.any_number() if term.kind == "any" else numbers.any_fractional()
    return numbers.bounded(term.low, term.high, term.kind)
