"""Deterministic automata over characters, for what no expression says: and, and not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer_grammar_xgrammar import charset, limits
from ninfer_grammar_xgrammar.charset import Ranges
from ninfer_grammar_xgrammar.nodes import Grammar, Node, Ref, alt, seq
from ninfer_grammar_xgrammar.regex import Cat, One, Or, Regex, RegexError, Times
from ninfer_grammar_xgrammar.spelling import Form, spell

MAX_STATES = 192
"""States of a combination; each takes the library a look at the vocabulary."""
MAX_RAW_STATES = 4_000
"""States before equal ones are joined."""
MAX_EDGES = 40_000
"""States of one expression's own automaton."""


@dataclass(frozen=True, slots=True)
class Automaton:
    """State 0 is the start; ``moves[state]`` maps classes of characters to states."""

    classes: tuple[Ranges, ...]
    moves: tuple[dict[int, int], ...]
    accepting: frozenset[int]

    @property
    def empty(self) -> bool:
        return not self.accepting


def combine(wanted: Sequence[Regex], unwanted: Sequence[Regex]) -> Automaton:
    """Texts of every ``wanted`` and of no ``unwanted``. Raises RegexError if that is large."""
    machines = [_Machine(regex) for regex in (*wanted, *unwanted)]
    classes = _partition([r for machine in machines for r in machine.sets])
    start = tuple(machine.start for machine in machines)
    numbers: dict[tuple[frozenset[int], ...], int] = {start: 0}
    order, moves = [start], []
    for states in order:
        limits.check()
        row: dict[int, int] = {}
        for index, ranges in enumerate(classes):
            limits.check()
            after = tuple(m.step(s, ranges[0][0]) for m, s in zip(machines, states, strict=True))
            if not all(after[: len(wanted)]):
                continue
            if after not in numbers:
                if len(numbers) >= MAX_RAW_STATES:
                    raise RegexError("together with its limits it is too complex", invalid=False)
                numbers[after] = len(order)
                order.append(after)
            row[index] = numbers[after]
        moves.append(row)
    accepting = frozenset(
        number
        for number, states in enumerate(order)
        if all(m.final in s for m, s in zip(machines[: len(wanted)], states, strict=False))
        and not any(
            m.final in s
            for m, s in zip(machines[len(wanted) :], states[len(wanted) :], strict=True)
        )
    )
    return _minimal(classes, moves, accepting)


def to_rules(automaton: Automaton, grammar: Grammar, form: Form, close: str) -> Node:
    """Rules for the texts of the automaton, each of which ends with ``close``: a rule knows what
    may follow it then."""
    if len(automaton.moves) > MAX_STATES:
        found = len(automaton.moves)
        why = f"together with its limits it has {found} states; {MAX_STATES} is the most"
        raise RegexError(why, invalid=False)
    names = [grammar.name(f"dfa{number}") + f"_{number}" for number in range(len(automaton.moves))]
    for number, row in enumerate(automaton.moves):
        targets: dict[int, list[Ranges]] = {}
        for index, target in row.items():
            targets.setdefault(target, []).append(automaton.classes[index])
        branches: list[Node] = [
            seq(spell(One(charset.union(*sets)), form), Ref(names[target]))
            for target, sets in targets.items()
        ]
        if number in automaton.accepting:
            branches.append(seq(close))
        grammar.rules[names[number]] = alt(*branches) if branches else alt()
    return Ref(names[0])


def matches(regex: Regex, text: str) -> bool:
    """Whether the whole of ``text`` is a text of ``regex``."""
    machine = _Machine(regex)
    states = machine.start
    for char in text:
        states = machine.step(states, ord(char))
    return machine.final in states


class _Machine:
    """A nondeterministic automaton of one expression, as closures of states."""

    def __init__(self, regex: Regex) -> None:
        self._edges: list[list[tuple[Ranges | None, int]]] = []
        first, self.final = self._new(), self._new()
        self._build(regex, first, self.final)
        self.sets = [r for edges in self._edges for r, _ in edges if r is not None]
        self._closures: dict[int, frozenset[int]] = {}
        self._steps: dict[tuple[frozenset[int], int], frozenset[int]] = {}
        self.start = self._closure({first})

    def step(self, states: frozenset[int], code: int) -> frozenset[int]:
        key = (states, code)
        if key not in self._steps:
            moved = {
                target
                for state in states
                for ranges, target in self._edges[state]
                if ranges is not None and charset.contains(ranges, code)
            }
            self._steps[key] = self._closure(moved)
        return self._steps[key]

    def _new(self) -> int:
        self._edges.append([])
        if len(self._edges) > MAX_EDGES:
            raise RegexError("its repetitions are too many", invalid=False)
        return len(self._edges) - 1

    def _closure(self, states: set[int]) -> frozenset[int]:
        found, queue = set(states), list(states)
        while queue:
            for ranges, target in self._edges[queue.pop()]:
                if ranges is None and target not in found:
                    found.add(target)
                    queue.append(target)
        return frozenset(found)

    def _build(self, regex: Regex, start: int, end: int) -> None:
        if isinstance(regex, One):
            self._edges[start].append((regex.ranges, end))
        elif isinstance(regex, Cat):
            for item in regex.items:
                middle = self._new()
                self._build(item, start, middle)
                start = middle
            self._edges[start].append((None, end))
        elif isinstance(regex, Or):
            for item in regex.items:
                self._build(item, start, end)
        elif isinstance(regex, Times):
            self._repeat(regex, start, end)

    def _repeat(self, regex: Times, start: int, end: int) -> None:
        for _ in range(regex.low):
            middle = self._new()
            self._build(regex.item, start, middle)
            start = middle
        if regex.high is None:
            loop = self._new()
            self._edges[start].append((None, loop))
            again = self._new()
            self._build(regex.item, loop, again)
            self._edges[again].append((None, loop))
            start = loop
        for _ in range((regex.high or regex.low) - regex.low):
            self._edges[start].append((None, end))
            middle = self._new()
            self._build(regex.item, start, middle)
            start = middle
        self._edges[start].append((None, end))


def _partition(sets: Sequence[Ranges]) -> tuple[Ranges, ...]:
    """Classes of characters that no set tells apart."""
    unique = list(dict.fromkeys(sets))
    cuts = sorted(
        {0, 0xE000} | {edge for r in unique for low, high in r for edge in (low, high + 1)}
    )
    groups: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for low, after in zip(cuts, [*cuts[1:], 0x110000], strict=True):
        if low < after and charset.contains(charset.ALL, low):
            key = tuple(charset.contains(ranges, low) for ranges in unique)
            groups.setdefault(key, []).append((low, after - 1))
    return tuple(charset.charset(pairs) for pairs in groups.values())


def _minimal(
    classes: tuple[Ranges, ...], moves: list[dict[int, int]], accepting: frozenset[int]
) -> Automaton:
    """Without states from which nothing is accepted, equal ones joined."""
    alive = _coreachable(moves, accepting)
    if 0 not in alive:
        return Automaton(classes, ({},), frozenset())
    rows = [
        {i: t for i, t in row.items() if t in alive} if number in alive else {}
        for number, row in enumerate(moves)
    ]
    group = [0 if n not in alive else 2 if n in accepting else 1 for n in range(len(rows))]
    while True:
        seen: dict[tuple[object, ...], int] = {}
        after = [
            seen.setdefault((group[n], *sorted((i, group[t]) for i, t in row.items())), len(seen))
            for n, row in enumerate(rows)
        ]
        if len(set(after)) == len(set(group)):
            break
        group = after
    order = list(dict.fromkeys([group[0], *(group[n] for n in sorted(alive))]))
    place = {name: number for number, name in enumerate(order)}
    members = {place[group[n]]: n for n in sorted(alive, reverse=True)}
    return Automaton(
        classes,
        tuple(
            {i: place[group[t]] for i, t in rows[members[number]].items()}
            for number in range(len(order))
        ),
        frozenset(place[group[n]] for n in accepting if n in alive),
    )


def _coreachable(moves: list[dict[int, int]], accepting: frozenset[int]) -> set[int]:
    before: dict[int, list[int]] = {}
    for number, row in enumerate(moves):
        for target in row.values():
            before.setdefault(target, []).append(number)
    found, queue = set(accepting), list(accepting)
    while queue:
        for number in before.get(queue.pop(), ()):
            if number not in found:
                found.add(number)
                queue.append(number)
    return found
