"""Arrays as rules: one for each place and each count that matters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_grammar_xgrammar.nodes import Loop, Node, Ref, alt, optional, seq
from ninfer_grammar_xgrammar.schema import texts
from ninfer_grammar_xgrammar.schema.document import Conj, joined
from ninfer_grammar_xgrammar.schema.terms import Arr
from ninfer_grammar_xgrammar.schema.texts import COMMA

if TYPE_CHECKING:
    from ninfer_grammar_xgrammar.schema.emit import Emitter

MAX_STATES = 4_096


def array(emitter: Emitter, term: Arr) -> Node:
    if term == Arr():
        return texts.any_array(emitter.grammar)
    last = max((rule.start + (not rule.onward) for rule in term.rules), default=0)
    if not last and not term.low and term.high is None and not term.contains:
        conj = term.conj(0)
        if emitter.never(conj):
            return seq("[]")
        item = emitter.value(conj)
        return seq("[", optional(seq(item, Loop(seq(COMMA, item)))), "]")
    return seq("[", _Chain(emitter, term, last).state(0, ()))


class _Chain:
    """Rules of what may follow ``index`` elements, among them ``counts`` that each ``contains``
    was met by. Places behind the last that differs are one, and counts beyond what is asked for."""

    def __init__(self, emitter: Emitter, term: Arr, last: int) -> None:
        self._emitter = emitter
        self._term = term
        self._cap = max(last, term.low, term.high or 0, 1)
        self._caps = [max(c.low, -1 if c.high is None else c.high + 1) for c in term.contains]
        self._rules: dict[tuple[int, tuple[int, ...]], Ref] = {}

    def state(self, index: int, counts: tuple[int, ...]) -> Node:
        counts = counts or (0,) * len(self._term.contains)
        key = (min(index, self._cap), counts)
        if key not in self._rules:
            if len(self._rules) > MAX_STATES:
                self._emitter.lowering.document.fail("unsupported", "", "counts too many elements")
            self._rules[key] = self._emitter.rule("items", lambda: self._body(*key))
        return self._rules[key]

    def _body(self, index: int, counts: tuple[int, ...]) -> Node:
        term, branches = self._term, []
        enough = all(n >= c.low for n, c in zip(counts, term.contains, strict=True))
        if index >= term.low and enough:
            branches.append(seq("]"))
        if term.high is None or index < term.high:
            comma: Node = COMMA if index else seq()
            for conj, after in self._elements(term.conj(index), counts):
                if not self._emitter.never(conj):
                    item = self._emitter.value(conj)
                    branches.append(seq(comma, item, self.state(index + 1, after)))
        return alt(*branches)

    def _elements(self, conj: Conj, counts: tuple[int, ...]) -> list[tuple[Conj, tuple[int, ...]]]:
        """What an element may be, and the counts after it."""
        found: list[tuple[Conj, tuple[int, ...]]] = [(conj, ())]
        for index, contains in enumerate(self._term.contains):
            count, after = counts[index], []
            more = min(count + 1, self._caps[index])
            for sofar, done in found:
                if contains.high is None or count < contains.high:
                    after.append((joined(sofar, contains.conj), (*done, more)))
                after += [
                    (joined(sofar, (node.opposite(),)), (*done, count)) for node in contains.conj
                ]
            found = after
        return found
