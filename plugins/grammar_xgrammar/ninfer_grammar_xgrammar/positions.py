"""Expressions whose deterministic automaton is too large, as rules of their positions (Glushkov's
automaton): of all the ways to read a text the library then keeps places, not histories."""

from __future__ import annotations

from ninfer_grammar_xgrammar import charset, limits
from ninfer_grammar_xgrammar.charset import Ranges
from ninfer_grammar_xgrammar.machine import Machine, places
from ninfer_grammar_xgrammar.nodes import Grammar, Node, Ref, alt, seq
from ninfer_grammar_xgrammar.regex import One, Regex
from ninfer_grammar_xgrammar.spelling import Form, spell

Body = tuple[bool, dict[int, set[int]]]
"""Whether a text may end here, and the classes of characters that lead to each other rule."""


def by_positions(
    regex: Regex, grammar: Grammar, form: Form, close: str | None, most: int
) -> Node | None:
    """Rules for the texts of an expression and then ``close``; None of ``close`` says that nothing
    follows at all. None is returned for more than ``most`` positions."""
    if not most or places(regex) > most:
        return None
    machine = Machine(regex)
    classes = machine.divided()
    bodies = _bodies(machine)
    block = _alike(bodies)
    prefix = grammar.name("position")
    for number, place in enumerate(block):
        name = f"{prefix}_{place}"
        if name not in grammar.rules:
            grammar.rules[name] = _rule(
                _merged(bodies[number], block), classes, prefix, form, close
            )
            if close is None:
                grammar.last.add(name)
    return Ref(f"{prefix}_{block[0]}")


def _bodies(machine: Machine) -> list[Body]:
    """One for each set of positions that a character leads to from one position; the start's is the
    first."""
    numbers, bodies = {machine.start: 0}, list[Body]()
    for states in (order := [machine.start]):
        body: dict[int, set[int]] = {}
        for index, after in machine.ways(states):
            limits.check()
            if after not in numbers:
                numbers[after] = len(order)
                order.append(after)
            body.setdefault(numbers[after], set()).add(index)
        bodies.append((bool(states & machine.final), body))
    return bodies


def _alike(bodies: list[Body]) -> list[int]:
    """The same number for bodies that lead to the same, as far as their form tells."""
    block = [0] * len(bodies)
    while True:
        seen: dict[object, int] = {}
        after = []
        for body in bodies:
            limits.check()
            ends, merged = _merged(body, block)
            form = frozenset((target, frozenset(found)) for target, found in merged.items())
            after.append(seen.setdefault((ends, form), len(seen)))
        if len(seen) == len(set(block)):
            return block
        block = after


def _merged(body: Body, block: list[int]) -> Body:
    merged: dict[int, set[int]] = {}
    for target, found in body[1].items():
        merged.setdefault(block[target], set()).update(found)
    return body[0], merged


def _rule(
    body: Body, classes: tuple[Ranges, ...], prefix: str, form: Form, close: str | None
) -> Node:
    ends, targets = body
    branches: list[Node] = [
        seq(
            spell(One(charset.union(*(classes[index] for index in found))), form),
            Ref(f"{prefix}_{target}"),
        )
        for target, found in targets.items()
    ]
    return alt(*branches, *([seq(close or "")] if ends else []))
