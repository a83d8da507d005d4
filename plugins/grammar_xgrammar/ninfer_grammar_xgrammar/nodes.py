"""Grammars between their sources and the library: small trees over characters and rule names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import is_

from ninfer_grammar_xgrammar import limits
from ninfer_grammar_xgrammar.charset import Ranges


@dataclass(frozen=True, slots=True)
class Text:
    """Exactly these characters."""

    value: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Many:
    """A character of a set, ``low`` to ``high`` times; None is without end."""

    chars: Chars
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Seq:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of ``items``; of none of them, nothing at all: the empty language."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """Any number of times, also never."""

    item: Node


@dataclass(frozen=True, slots=True)
class Ref:
    name: str


Node = Text | Chars | Many | Seq | Alt | Loop | Ref

EMPTY = Seq(())
NEVER = Alt(())


def seq(*items: Node | str) -> Node:
    """Items one after another; neighbouring texts join."""
    flat: list[Node] = []
    for item in items:
        node = Text(item) if isinstance(item, str) else item
        for part in node.items if isinstance(node, Seq) else (node,):
            if part == NEVER:
                return NEVER
            if isinstance(part, Text) and flat and isinstance(flat[-1], Text):
                flat[-1] = Text(flat[-1].value + part.value)
            elif part != Text(""):
                flat.append(part)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(*items: Node | str) -> Node:
    """One of the items, each once."""
    flat: dict[Node, None] = {}
    for item in items:
        node = Text(item) if isinstance(item, str) else item
        flat.update(dict.fromkeys(node.items if isinstance(node, Alt) else (node,)))
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def optional(item: Node) -> Node:
    return alt(item, EMPTY)


@dataclass(slots=True)
class Grammar:
    """Rules by name; ``root`` is where a text starts. Behind those of ``last`` nothing follows.
    An expression may be made deterministic with up to ``states`` states, or else written out with
    up to ``positions`` characters."""

    rules: dict[str, Node] = field(default_factory=dict)
    root: str = "root"
    last: set[str] = field(default_factory=set)
    states: int = 0
    positions: int = 0

    def name(self, prefix: str) -> str:
        """A name that no rule has."""
        return f"{prefix}_{len(self.rules)}"

    def add(self, prefix: str, node: Node) -> Ref:
        name = self.name(prefix)
        self.rules[name] = node
        return Ref(name)

    def pruned(self) -> Grammar | None:
        """Without what derives no text and what is not reached; None if nothing remains."""
        alive = _productive(self.rules)
        if self.root not in alive:
            return None
        kept, living = {}, _Living(alive)
        for name in (name for name in self.rules if name in alive):
            limits.check()
            kept[name] = living.prune(self.rules[name])
        reached, queue = {self.root}, [self.root]
        while queue:
            for name in set(references(kept[queue.pop()])) - reached:
                reached.add(name)
                queue.append(name)
        rules = {name: node for name, node in kept.items() if name in reached}
        return Grammar(rules, self.root, self.last & reached, self.states, self.positions)


def references(node: Node) -> Iterator[str]:
    """The rules that ``node`` names."""
    stack = [node]
    while stack:
        here = stack.pop()
        if isinstance(here, Ref):
            yield here.name
        elif isinstance(here, Seq | Alt):
            stack.extend(here.items)
        elif isinstance(here, Loop):
            stack.append(here.item)


def nodes_in(node: Node) -> int:
    """How many nodes ``node`` is made of."""
    count, stack = 0, [node]
    while stack:
        here = stack.pop()
        count += 1
        if isinstance(here, Seq | Alt):
            stack.extend(here.items)
        elif isinstance(here, Loop):
            stack.append(here.item)
    return count


def _productive(rules: dict[str, Node]) -> set[str]:
    """Rules that derive some text, found from the leaves upwards."""
    users: dict[str, set[str]] = {}
    for name, node in rules.items():
        for used in references(node):
            users.setdefault(used, set()).add(name)
    alive: set[str] = set()
    queue: Iterable[str] = list(rules)
    while queue:
        later: set[str] = set()
        living = _Living(alive)
        for name in queue:
            limits.check()
            if name not in alive and living.derives(rules[name]):
                alive.add(name)
                later |= users.get(name, set())
        queue = later - alive
    return alive


class _Living:
    """What derives a text where the rules ``alive`` do. Repetitions are written out with one node
    in many places, so that each is looked at once."""

    def __init__(self, alive: set[str]) -> None:
        self._alive = alive
        self._derives: dict[int, bool] = {}
        self._pruned: dict[int, Node] = {}

    def derives(self, node: Node) -> bool:
        key = id(node)
        if key not in self._derives:
            limits.check()
            self._derives[key] = self._look(node)
        return self._derives[key]

    def prune(self, node: Node) -> Node:
        """``node``, which derives something, without the branches that do not."""
        key = id(node)
        if key not in self._pruned:
            limits.check()
            self._pruned[key] = self._without(node)
        return self._pruned[key]

    def _look(self, node: Node) -> bool:
        if isinstance(node, Ref):
            return node.name in self._alive
        if isinstance(node, Seq):
            return all(self.derives(item) for item in node.items)
        if isinstance(node, Alt):
            return any(self.derives(item) for item in node.items)
        if isinstance(node, Many):
            return node.low == 0 or bool(node.chars.ranges)
        return not isinstance(node, Chars) or bool(node.ranges)

    def _without(self, node: Node) -> Node:
        if isinstance(node, Loop):
            if not self.derives(node.item):
                return EMPTY
            item = self.prune(node.item)
            return node if item is node.item else Loop(item)
        if isinstance(node, Seq | Alt):
            living = [item for item in node.items if isinstance(node, Seq) or self.derives(item)]
            items = [self.prune(item) for item in living]
            if len(items) == len(node.items) and all(map(is_, items, node.items)):
                return node
            return seq(*items) if isinstance(node, Seq) else alt(*items)
        return EMPTY if isinstance(node, Many) and not node.chars.ranges else node
