"""The parts of a constraint (``ninfer_core.contract.grammar``) as grammars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ninfer_core.contract.errors import InvalidSchema
from ninfer_grammar_xgrammar import automata, gbnf, limits, members, regex
from ninfer_grammar_xgrammar.ebnf import MAX_WIDE, check_size
from ninfer_grammar_xgrammar.limits import TooLarge
from ninfer_grammar_xgrammar.nodes import Alt, Grammar, Loop, Node, Ref, Seq, alt, optional, seq
from ninfer_grammar_xgrammar.regex import RegexError
from ninfer_grammar_xgrammar.schema import schema_rule
from ninfer_grammar_xgrammar.schema.texts import any_object
from ninfer_grammar_xgrammar.spelling import Form

MAX_CHOICES = 4_096
MAX_CHOICE_CHARS = 262_144
FEW_STATES = 64
Part = Mapping[str, Any]


def part_grammar(part: Part, states: int = 0, positions: int = 0) -> Grammar:
    """The grammar of one part. Raises InvalidSchema for what is malformed, not supported,
    unsatisfiable or too large.

    With ``states`` expressions in it are made deterministic up to so many states of each, with
    ``positions`` those beyond that are written out up to so many characters: their masks are quick
    then, whatever they are, but compiling takes longer. An expression that is the whole of a part
    is always made deterministic, up to :data:`FEW_STATES`.
    """
    grammar = Grammar(states=states, positions=positions)
    try:
        with limits.limited():
            grammar.rules["root"] = _root(part, grammar)
            pruned = grammar.pruned()
            if pruned is None:
                refuse(part, "unsatisfiable", "allows no text at all")
            check_size(pruned, max(MAX_WIDE, positions))
            return pruned
    except TooLarge as error:
        refuse(part, "unsupported", f"is too large to enforce: {error}")
    except RecursionError:
        refuse(part, "unsupported", "is too large to enforce: it is nested too deeply")


def _root(part: Part, grammar: Grammar) -> Node:
    if part["kind"] != "regex":
        return _node(part, grammar)
    grammar.states = max(grammar.states, FEW_STATES)
    return _regex(part, grammar, close=None)


def _node(part: Part, grammar: Grammar) -> Node:
    return _KINDS[part["kind"]](part, grammar)


def _schema(part: Part, grammar: Grammar) -> Node:
    return schema_rule(part["schema"], part["param"], grammar, closed=part["closed"])


def _regex(part: Part, grammar: Grammar, close: str | None = "") -> Node:
    try:
        return automata.spelled(regex.full(part["pattern"]), grammar, Form.PLAIN, close)
    except RegexError as error:
        refuse(part, "invalid" if error.invalid else "unsupported", f"cannot be enforced: {error}")


def _grammar(part: Part, grammar: Grammar) -> Node:
    try:
        parsed = gbnf.parse(part["source"])
    except gbnf.GrammarError as error:
        kind = "invalid" if error.invalid else "unsupported"
        refuse(part, kind, f"is no grammar that can be enforced: {error}")
    names = {name: f"given {name}" for name in parsed.rules}
    for name, node in parsed.rules.items():
        grammar.rules[names[name]] = _renamed(node, names)
    return Ref(names[parsed.root])


def _choice(part: Part, grammar: Grammar) -> Node:
    values = part["values"]
    if not isinstance(values, list) or not values or not all(isinstance(v, str) for v in values):
        refuse(part, "invalid", "must be a list of texts with at least one entry")
    if not all(values):
        refuse(part, "invalid", "has an empty text among its choices")
    if len(values) > MAX_CHOICES or sum(map(len, values)) > MAX_CHOICE_CHARS:
        refuse(part, "unsupported", f"has more than {MAX_CHOICES} choices, or too long ones")
    return alt(*values)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    if isinstance(node, Ref):
        return Ref(names[node.name])
    if isinstance(node, Seq):
        return Seq(tuple(_renamed(item, names) for item in node.items))
    if isinstance(node, Alt):
        return Alt(tuple(_renamed(item, names) for item in node.items))
    return Loop(_renamed(node.item, names)) if isinstance(node, Loop) else node


def refuse(part: Part, kind: str, why: str) -> NoReturn:
    """Raises InvalidSchema; ``kind``: invalid, unsupported or unsatisfiable."""
    what = {"grammar": "grammar", "regex": "regex", "choice": "choice"}
    param = part.get("param", "response_format")
    code = f"{kind}_{what.get(part['kind'], 'json_schema')}"
    raise InvalidSchema(f"{param} {why}", param=param, code=code)


_KINDS: dict[str, Callable[[Part, Grammar], Node]] = {
    "json_schema": _schema,
    "json_object": lambda part, grammar: any_object(grammar),
    "regex": _regex,
    "grammar": _grammar,
    "choice": _choice,
    "text": lambda part, grammar: seq(part["value"]),
    "seq": lambda part, grammar: seq(*(_node(item, grammar) for item in part["items"])),
    "alt": lambda part, grammar: alt(*(_node(item, grammar) for item in part["items"])),
    "optional": lambda part, grammar: optional(_node(part["item"], grammar)),
    "loop": lambda part, grammar: Loop(_node(part["item"], grammar)),
    "members": members.members,
}
