"""Deterministic automata over characters: for what no expression says (and, and not), and for
expressions that can be read several ways at once, which cost the library long masks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ninfer_grammar_xgrammar import charset, limits
from ninfer_grammar_xgrammar.charset import Ranges
from ninfer_grammar_xgrammar.ebnf import WIDE
from ninfer_grammar_xgrammar.machine import Machine, partition, places
from ninfer_grammar_xgrammar.nodes import Grammar, Node, Ref, alt, seq
from ninfer_grammar_xgrammar.positions import by_positions
from ninfer_grammar_xgrammar.regex import One, Regex, RegexError
from ninfer_grammar_xgrammar.spelling import Form, spell

MAX_STATES = 192
"""States of a combination; each takes the library a look at the vocabulary."""
MAX_RAW_STATES = 4_000
"""States before equal ones are joined."""
_RAW_SHARE = 8
_MOVES_SHARE = 400
"""How many states before that, and moves between them, an expression may come to for each state
that it may have in the end."""
_NARROW = 8
"""One in so many states of an expression may be wide."""
_CHAIN = 64
"""States that one after another stand in the rule of the first."""

Row = dict[int, int]
"""What follows a character of each class."""


@dataclass(frozen=True, slots=True)
class Automaton:
    """State 0 is the start; ``moves[state]`` maps classes of characters to states. From every state
    something is accepted."""

    classes: tuple[Ranges, ...]
    moves: tuple[Row, ...]
    accepting: frozenset[int]

    @property
    def empty(self) -> bool:
        return not self.accepting

    @property
    def wide(self) -> int:
        """How many states many characters lead on from, as ``ebnf.MAX_WIDE`` counts them."""
        sizes = [charset.size(ranges) for ranges in self.classes]
        return sum(sum(sizes[index] for index in row) > WIDE for row in self.moves)


def combine(wanted: Sequence[Regex], unwanted: Sequence[Regex]) -> Automaton:
    """Texts of every ``wanted`` and of no ``unwanted``. Raises RegexError if that is large."""
    machines = [Machine(regex) for regex in (*wanted, *unwanted)]
    classes = partition(ranges for machine in machines for ranges in machine.sets)
    for machine in machines:
        machine.divide(classes)
    numbers = {tuple(machine.start for machine in machines): 0}
    moves: list[Row] = []
    for states in (order := list(numbers)):
        rows = [machine.row(one) for machine, one in zip(machines, states, strict=True)]
        row: Row = {}
        for index in range(len(classes)):
            limits.check()
            after = tuple(found.get(index, 0) for found in rows)
            if not all(after[: len(wanted)]):
                continue
            if after not in numbers:
                if len(numbers) >= MAX_RAW_STATES:
                    raise RegexError("together with its limits it is too complex", invalid=False)
                numbers[after] = len(order)
                order.append(after)
            row[index] = numbers[after]
        moves.append(row)
    whole = [tuple(bool(m.final & s) for m, s in zip(machines, o, strict=True)) for o in order]
    accepting = {
        number
        for number, each in enumerate(whole)
        if all(each[: len(wanted)]) and not any(each[len(wanted) :])
    }
    return _minimal(classes, moves, accepting)


def determined(regex: Regex, most: int) -> Automaton | None:
    """The smallest automaton of an expression. None if it has more than ``most`` states, many of
    them wide, or is hard to find."""
    if places(regex) > most * _RAW_SHARE:
        return None
    machine = Machine(regex)
    classes = machine.divided()
    numbers, moves, left = {machine.start: 0}, list[Row](), most * _MOVES_SHARE
    for states in (order := [machine.start]):
        row: Row = {}
        for index, after in machine.row(states).items():
            if after not in numbers:
                numbers[after] = len(order)
                order.append(after)
            row[index] = numbers[after]
        moves.append(row)
        left -= 1 + len(row) + states.bit_count()
        if len(order) > most * _RAW_SHARE or left < 0:
            return None
    accepting = {number for number, states in enumerate(order) if machine.final & states}
    automaton = _minimal(classes, moves, accepting)
    small = len(automaton.moves) <= most and automaton.wide <= most // _NARROW
    return automaton if small else None


def spelled(regex: Regex, grammar: Grammar, form: Form, close: str | None) -> Node:
    """The texts of an expression and then ``close``, by states or by positions where the grammar
    allows as many. Raises RegexError for one that grows too large."""
    plain = spell(regex, form)
    found = determined(regex, grammar.states) if grammar.states else None
    if found is not None:
        return to_rules(found, grammar, form, close, grammar.states)
    placed = by_positions(regex, grammar, form, close, grammar.positions)
    return seq(plain, close or "") if placed is None else placed


def to_rules(
    automaton: Automaton, grammar: Grammar, form: Form, close: str | None, most: int = MAX_STATES
) -> Node:
    """Rules for the texts of the automaton, each of which ends with ``close``: a rule knows what
    may follow it then. None says that nothing follows at all. Raises RegexError for more than
    ``most`` states."""
    if len(automaton.moves) > most:
        found = len(automaton.moves)
        why = f"together with its limits it has {found} states; {most} is the most"
        raise RegexError(why, invalid=False)
    return _Rules(automaton, grammar, form, close).root()


def matches(regex: Regex, text: str) -> bool:
    """Whether the whole of ``text`` is a text of ``regex``."""
    machine = Machine(regex)
    states = machine.start
    for char in text:
        states = machine.step(states, ord(char))
    return bool(machine.final & states)


class _Rules:
    """A rule for each state but the links of a chain, and ends. Of what is in brackets the library
    makes rules of its own, and does not know what follows those."""

    def __init__(
        self, automaton: Automaton, grammar: Grammar, form: Form, close: str | None
    ) -> None:
        self._automaton, self._grammar = automaton, grammar
        self._form, self._close = form, close
        self._prefix = grammar.name("dfa")
        self._before: dict[int, set[int]] = defaultdict(set)
        for number, row in enumerate(automaton.moves):
            for target in row.values():
                self._before[target].add(number)
        self._queue: list[int] = []
        self._named: set[int] = set()

    def root(self) -> Node:
        first = self._rule(0)
        for number in self._queue:
            limits.check()
            self._grammar.rules[self._name(number)] = self._body(number, 0)
            if self._close is None:
                self._grammar.last.add(self._name(number))
        return first

    def _name(self, number: int) -> str:
        return f"{self._prefix}_{number}"

    def _rule(self, number: int) -> Ref:
        if number not in self._named:
            self._named.add(number)
            self._queue.append(number)
        return Ref(self._name(number))

    def _body(self, number: int, depth: int) -> Node:
        """What may come from a state on."""
        targets: dict[int, list[Ranges]] = {}
        for index, target in self._automaton.moves[number].items():
            targets.setdefault(target, []).append(self._automaton.classes[index])
        branches: list[Node] = [
            seq(spell(One(charset.union(*sets)), self._form), self._after(number, target, depth))
            for target, sets in targets.items()
        ]
        if number in self._automaton.accepting:
            branches.append(seq(self._close or ""))
        return alt(*branches)

    def _after(self, number: int, target: int, depth: int) -> Node:
        row = self._automaton.moves[target]
        if not row:
            return self._body(target, depth)
        onward = len(set(row.values())) == 1 and target not in self._automaton.accepting
        link = onward and target and self._before[target] == {number} and target != number
        return self._body(target, depth + 1) if link and depth < _CHAIN else self._rule(target)


def _minimal(
    classes: tuple[Ranges, ...], moves: Sequence[Row], accepting: Collection[int]
) -> Automaton:
    """Without states from which nothing is accepted, equal ones joined."""
    alive = _reaching(accepting, moves)
    if 0 not in alive:
        return Automaton(classes, ({},), frozenset())
    rows = [
        {i: t for i, t in row.items() if t in alive} if number in alive else {}
        for number, row in enumerate(moves)
    ]
    block = _blocks(rows, alive, set(accepting))
    order = list(dict.fromkeys([block[0], *(block[n] for n in sorted(alive))]))
    place = {name: number for number, name in enumerate(order)}
    member = {place[block[n]]: n for n in sorted(alive, reverse=True)}
    return Automaton(
        classes,
        tuple({i: place[block[t]] for i, t in rows[member[n]].items()} for n in range(len(order))),
        frozenset(place[block[n]] for n in accepting),
    )


def _blocks(rows: Sequence[Row], alive: set[int], accepting: set[int]) -> dict[int, int]:
    """The block of equal states that each belongs to: Hopcroft's refinement (1971). Of a state
    without a move nothing has to be known: it is in no block's predecessors."""
    before: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number in alive:
        for index, target in rows[number].items():
            before[target][index].append(number)
    members = [one for one in (accepting & alive, alive - accepting) if one]
    block = {number: place for place, one in enumerate(members) for number in one}
    waiting = set(range(len(members)))
    while waiting:
        leading: dict[int, set[int]] = defaultdict(set)
        for target in members[waiting.pop()]:
            limits.check()
            for index, sources in before[target].items():
                leading[index].update(sources)
        for sources_of_class in leading.values():
            _split(sources_of_class, members, block, waiting)
    return block


def _split(
    chosen: set[int], members: list[set[int]], block: dict[int, int], waiting: set[int]
) -> None:
    """Part each block that ``chosen`` holds some of, but not all."""
    touched: dict[int, set[int]] = defaultdict(set)
    for number in chosen:
        touched[block[number]].add(number)
    for place, inside in touched.items():
        if len(inside) == len(members[place]):
            continue
        limits.check()
        outside = members[place] - inside
        smaller, larger = sorted((inside, outside), key=len)
        members[place], new = larger, len(members)
        members.append(smaller)
        block.update(dict.fromkeys(smaller, new))
        waiting.add(new)


def _reaching(accepting: Iterable[int], moves: Sequence[Row]) -> set[int]:
    """States from which one of ``accepting`` is reached."""
    before: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(moves):
        for target in row.values():
            before[target].append(number)
    found, queue = set(accepting), list(accepting)
    while queue:
        for number in before[queue.pop()]:
            if number not in found:
                found.add(number)
                queue.append(number)
    return found
