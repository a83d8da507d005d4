"""A grammar in the library's own notation, once it is known to be small enough."""

from __future__ import annotations

from ninfer_grammar_xgrammar.charset import Ranges, complement, size
from ninfer_grammar_xgrammar.limits import TooLarge
from ninfer_grammar_xgrammar.nodes import (
    EMPTY,
    Alt,
    Chars,
    Grammar,
    Loop,
    Many,
    Node,
    Ref,
    Seq,
    Text,
)

MAX_NODES = 65_536
"""Nodes of a whole grammar."""
MAX_RULES = 2_048
"""Rules of a whole grammar: chains of optional ones cost the library more than their length."""
MAX_WIDE = 256
"""Places where many tokens may come (a set of more than :data:`WIDE` characters): the library looks
at the whole vocabulary for each when it compiles."""
WIDE = 512
MAX_RANGES = 16_384
"""Ranges of all sets that are scattered (over :data:`SCATTERED` ranges, as ``\\W`` is): the library
spells each out in bytes."""
SCATTERED = 32
_END = ' (= "\\U0010ffff")'
"""What follows a rule behind which nothing follows, for the library: what no token begins with, so
that it refuses tokens that go on behind the end when it compiles, and not at every mask."""


def check_size(grammar: Grammar, most_wide: int = MAX_WIDE) -> None:
    """Raises TooLarge."""
    nodes, wide, ranges = 0, 0, 0
    for root in grammar.rules.values():
        stack: list[Node] = [root]
        while stack:
            node = stack.pop()
            nodes += 1
            if isinstance(node, Seq | Alt):
                stack.extend(node.items)
            elif isinstance(node, Loop):
                stack.append(node.item)
            elif isinstance(node, Many):
                stack.append(node.chars)
            elif isinstance(node, Text):
                nodes += len(node.value) // 8
            elif isinstance(node, Chars):
                wide += size(node.ranges) > WIDE
                ranges += len(node.ranges) if len(node.ranges) > SCATTERED else 0
    if len(grammar.rules) > MAX_RULES:
        raise TooLarge(f"it comes to {len(grammar.rules)} rules; {MAX_RULES} is the most")
    if nodes > MAX_NODES:
        raise TooLarge(f"it comes to {nodes} nodes of a grammar; {MAX_NODES} is the most")
    if ranges > MAX_RANGES:
        raise TooLarge(f"its sets come to {ranges} ranges of characters; {MAX_RANGES} is the most")
    if wide > most_wide:
        raise TooLarge(f"it has {wide} places for nearly any character; {most_wide} is the most")


def to_ebnf(grammar: Grammar) -> str:
    names = {
        name: "root" if name == grammar.root else f"r{i}" for i, name in enumerate(grammar.rules)
    }
    lines = [
        f"{names[name]} ::= {_show(node, names, 0)}{_END if name in grammar.last else ''}"
        for name, node in grammar.rules.items()
    ]
    return "\n".join(lines) + "\n"


def _show(node: Node, names: dict[str, str], depth: int) -> str:
    """``depth`` 0: a whole rule; 1: within alternatives; 2: one item."""
    if isinstance(node, Text):
        return quoted(node.value)
    if isinstance(node, Chars):
        return _class(node.ranges)
    if isinstance(node, Many):
        bounds = f"{{{node.low},{'' if node.high is None else node.high}}}"
        repeat = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.low, node.high), bounds)
        return _class(node.chars.ranges) + repeat
    if isinstance(node, Ref):
        return names[node.name]
    if isinstance(node, Loop):
        return f"({_show(node.item, names, 0)})*"
    if node == EMPTY:
        return '""'
    if isinstance(node, Seq):
        text = " ".join(_show(item, names, 2) for item in node.items)
        return f"({text})" if depth > 1 else text
    text = " | ".join(_show(item, names, 1) for item in node.items)
    return f"({text})" if depth > 0 else text


def quoted(text: str) -> str:
    return '"' + "".join(_char(ord(c)) for c in text) + '"'


def _class(ranges: Ranges) -> str:
    """A set; nearly everything as what it leaves out, which the library compiles 60 times faster.
    No text holds surrogates, so that it does not matter on which side they are."""
    outside = complement(ranges)
    if ranges and ranges[-1][1] == 0x10FFFF and outside:
        return f"[^{_ranges(outside)}]"
    return f"[{_ranges(ranges)}]"


def _ranges(ranges: Ranges) -> str:
    parts = [_char(low) if low == high else f"{_char(low)}-{_char(high)}" for low, high in ranges]
    return "".join(parts)


def _char(code: int) -> str:
    if chr(code).isalnum() and code < 0x80:
        return chr(code)
    return f"\\U{code:08x}"
