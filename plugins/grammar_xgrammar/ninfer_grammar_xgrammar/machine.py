"""Nondeterministic automata of expressions, whose sets of states are whole numbers, bit by bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ninfer_grammar_xgrammar import charset, limits
from ninfer_grammar_xgrammar.charset import Ranges
from ninfer_grammar_xgrammar.regex import Cat, One, Or, Regex, RegexError, Times

MAX_EDGES = 40_000
"""States of one expression's own automaton."""


def places(regex: Regex) -> int:
    """Characters of an expression whose repetitions are written out."""
    if isinstance(regex, Cat | Or):
        return sum(map(places, regex.items))
    if isinstance(regex, Times):
        return max(regex.low, regex.high or 0, 1) * places(regex.item)
    return 1


def partition(sets: Iterable[Ranges]) -> tuple[Ranges, ...]:
    """Classes of characters that no set tells apart."""
    unique = list(dict.fromkeys(sets))
    cuts = sorted(
        {0, 0xE000} | {edge for r in unique for low, high in r for edge in (low, high + 1)}
    )
    groups: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for low, after in zip(cuts, [*cuts[1:], 0x110000], strict=True):
        if low < after and charset.contains(charset.ALL, low):
            limits.check()
            key = tuple(charset.contains(ranges, low) for ranges in unique)
            groups.setdefault(key, []).append((low, after - 1))
    return tuple(charset.charset(pairs) for pairs in groups.values())


class Machine:
    """``start`` is a set of states, ``final`` the one of texts that are whole; ``sets`` are the
    sets of characters that the expression tells apart."""

    def __init__(self, regex: Regex) -> None:
        self._edges: list[list[tuple[Ranges | None, int]]] = []
        first, last = self._new(), self._new()
        self._build(regex, first, last)
        self.sets = [r for edges in self._edges for r, _ in edges if r is not None]
        self._kept = self._numbered(last)
        self._closures: dict[int, int] = {}
        self._steps: dict[int, tuple[tuple[int, int], ...]] = {}
        self._classes: dict[Ranges, tuple[int, ...]] = {}
        self.final = 1 << self._kept[last]
        self.start = self._closure(first)

    def step(self, states: int, code: int) -> int:
        """The states after one more character."""
        after = 0
        for state in self._states(states):
            for ranges, target in self._edges[state]:
                if ranges is not None and charset.contains(ranges, code):
                    after |= self._closure(target)
        return after

    def divide(self, classes: Sequence[Ranges]) -> None:
        """Have :meth:`row` speak of ``classes``, none of which any of ``sets`` divides."""
        self._classes = {
            ranges: tuple(i for i, one in enumerate(classes) if charset.contains(ranges, one[0][0]))
            for ranges in dict.fromkeys(self.sets)
        }

    def divided(self) -> tuple[Ranges, ...]:
        """The classes of characters that the expression does not tell apart, for :meth:`row`."""
        classes = partition(self.sets)
        self.divide(classes)
        return classes

    def row(self, states: int) -> dict[int, int]:
        """The states after a character of each class that has any."""
        found: dict[int, int] = {}
        for index, after in self.ways(states):
            found[index] = found.get(index, 0) | after
        return found

    def ways(self, states: int) -> Iterator[tuple[int, int]]:
        """A class and the states after a character of it, from each of ``states``."""
        for state in self._states(states):
            limits.check()
            yield from self._moves(state)

    def _moves(self, state: int) -> tuple[tuple[int, int], ...]:
        if state not in self._steps:
            self._steps[state] = tuple(
                (index, self._closure(target))
                for ranges, target in self._edges[state]
                if ranges is not None
                for index in self._classes[ranges]
            )
        return self._steps[state]

    def _numbered(self, last: int) -> dict[int, int]:
        """The bits of the states that matter: those that take a character, and the last."""
        taking = [n for n, edges in enumerate(self._edges) if any(r is not None for r, _ in edges)]
        self._order = list(dict.fromkeys([*taking, last]))
        return {state: bit for bit, state in enumerate(self._order)}

    def _states(self, states: int) -> Iterator[int]:
        while states:
            lowest = states & -states
            yield self._order[lowest.bit_length() - 1]
            states ^= lowest

    def _new(self) -> int:
        self._edges.append([])
        if len(self._edges) > MAX_EDGES:
            raise RegexError("its repetitions are too many", invalid=False)
        return len(self._edges) - 1

    def _closure(self, state: int) -> int:
        """What is reached from ``state`` without a character."""
        if state not in self._closures:
            found, queue, bits = {state}, [state], 0
            while queue:
                limits.check()
                here = queue.pop()
                bits |= 1 << self._kept[here] if here in self._kept else 0
                for ranges, target in self._edges[here]:
                    if ranges is None and target not in found:
                        found.add(target)
                        queue.append(target)
            self._closures[state] = bits
        return self._closures[state]

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
