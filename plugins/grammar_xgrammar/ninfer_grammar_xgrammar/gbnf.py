"""GBNF and EBNF, as llama.cpp and the library write them, to grammar nodes."""

from __future__ import annotations

import re
from typing import NoReturn

from ninfer_grammar_xgrammar import charset
from ninfer_grammar_xgrammar.charset import Ranges
from ninfer_grammar_xgrammar.nodes import (
    EMPTY,
    Chars,
    Grammar,
    Loop,
    Many,
    Node,
    Ref,
    Text,
    alt,
    nodes_in,
    optional,
    references,
    seq,
)

MAX_CHARS = 262_144
MAX_UNROLLED = 4_096
MAX_DEPTH = 64
MAX_NESTED = 256
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_HEAD = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)[ \t\r\n]*::=")
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BOUNDS = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0", "b": "\b"}
_HEX = {"x": 2, "u": 4, "U": 8}


class GrammarError(ValueError):
    """``invalid``: no grammar at all; else one that is not supported."""

    def __init__(self, message: str, *, invalid: bool = True) -> None:
        super().__init__(message)
        self.invalid = invalid


def parse(source: str) -> Grammar:
    """Rules of ``source``; its ``root`` is the start. Raises GrammarError with line and column."""
    return _Parser(source).grammar()


class _Parser:
    def __init__(self, source: str) -> None:
        if len(source) > MAX_CHARS:
            raise GrammarError(f"it is longer than {MAX_CHARS} characters", invalid=False)
        self._text = source
        self._at = 0
        self._left = MAX_UNROLLED
        self._depth = 0

    def grammar(self) -> Grammar:
        rules: dict[str, Node] = {}
        self._skip()
        while self._at < len(self._text):
            head = _HEAD.match(self._text, self._at)
            if head is None:
                self._fail("here a rule must begin: name ::= ...")
            if head[1] in rules:
                self._fail(f"rule {head[1]!r} is defined twice")
            self._at = head.end()
            rules[head[1]] = self._alternatives()
        grammar = Grammar(rules)
        if "root" not in rules:
            raise GrammarError("it has no rule named root")
        for name, node in rules.items():
            for used in references(node):
                if used not in rules:
                    raise GrammarError(f"rule {name!r} uses {used!r}, which is not defined")
        return grammar

    def _alternatives(self) -> Node:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return alt(*branches)

    def _sequence(self) -> Node:
        items: list[Node] = []
        self._skip()
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if _HEAD.match(self._text, self._at):
                break
            items.append(self._repeated(self._item()))
            self._skip()
        return seq(*items)

    def _repeated(self, item: Node) -> Node:
        self._skip()
        while (bounds := self._bounds()) is not None:
            item = self._times(item, *bounds)
            self._skip()
        return item

    def _bounds(self) -> tuple[int, int | None] | None:
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(mark):
                return bounds
        if self._text[self._at : self._at + 1] != "{":
            return None
        found = _BOUNDS.match(self._text, self._at)
        if found is None or not (found[1] or found[3]):
            self._fail("a repetition is {n}, {n,}, {n,m} or {,m}")
        low = int(found[1] or 0)
        high = (int(found[3]) if found[3] else None) if found[2] else low
        if high is not None and high < low:
            self._fail(f"it repeats {low} to {high} times")
        if max(low, high or 0) > 16_384:
            self._fail("it repeats more than 16384 times", invalid=False)
        self._at = found.end()
        return low, high

    def _times(self, item: Node, low: int, high: int | None) -> Node:
        if isinstance(item, Chars):
            return Many(item, low, high)
        if isinstance(item, Loop) or item == EMPTY:
            return item
        self._left -= max(low, high or 0) * nodes_in(item)
        if self._left < 0 or (high or low) - low > MAX_NESTED:
            self._fail("its repetitions of more than one character are too many", invalid=False)
        copies = [item] * low
        if high is None:
            return seq(*copies, Loop(item))
        tail: Node = EMPTY
        for _ in range(high - low):
            tail = optional(seq(item, tail))
        return seq(*copies, tail)

    def _item(self) -> Node:
        char = self._text[self._at]
        if char == '"':
            return self._literal()
        if char == "[":
            return Chars(self._class())
        if char == ".":
            self._at += 1
            return Chars(charset.ALL)
        if char == "(":
            return self._group()
        if char == "<":
            self._fail("tokens (<...>) are not supported; spell the text", invalid=False)
        name = _NAME.match(self._text, self._at)
        if name is None:
            self._fail(f"{char!r} begins no item")
        self._at = name.end()
        if self._text.startswith("(", self._at):
            self._fail(f"{name[0]}(...) is not supported", invalid=False)
        return Ref(name[0])

    def _group(self) -> Node:
        self._at += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"groups are nested deeper than {MAX_DEPTH} levels", invalid=False)
        node = self._alternatives()
        self._depth -= 1
        if not self._take(")"):
            self._fail("a '(' is not closed")
        return node

    def _literal(self) -> Node:
        self._at += 1
        chars = []
        while not self._text.startswith('"', self._at):
            if self._at >= len(self._text) or self._text[self._at] == "\n":
                self._fail("a '\"' is not closed")
            chars.append(self._char())
        self._at += 1
        return Text("".join(chars)) if chars else EMPTY

    def _class(self) -> Ranges:
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        pairs = []
        while not self._text.startswith("]", self._at):
            low = high = ord(self._char())
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                high = ord(self._char())
                if high < low:
                    self._fail("a range runs backwards")
            pairs.append((low, high))
        self._at += 1
        ranges = charset.charset(pairs)
        return charset.complement(ranges) if negated else ranges

    def _char(self) -> str:
        if self._at >= len(self._text):
            self._fail("it breaks off")
        char = self._text[self._at]
        self._at += 1
        if char != "\\":
            return char
        kind = self._text[self._at : self._at + 1]
        self._at += 1
        if kind in _HEX:
            digits = self._text[self._at : self._at + _HEX[kind]]
            if (
                not re.fullmatch(f"[0-9A-Fa-f]{{{_HEX[kind]}}}", digits)
                or int(digits, 16) > 0x10FFFF
            ):
                self._fail("an escape lacks its hexadecimal digits")
            self._at += _HEX[kind]
            return self._whole(int(digits, 16))
        if not kind or (kind.isalnum() and kind not in _ESCAPES):
            self._fail(f"\\{kind} is no escape")
        return _ESCAPES.get(kind, kind)

    def _whole(self, code: int) -> str:
        if 0xD800 <= code <= 0xDFFF:
            self._fail("an escape is half of a surrogate pair")
        return chr(code)

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at

    def _take(self, mark: str) -> bool:
        self._skip()
        found = self._text.startswith(mark, self._at)
        self._at += len(mark) if found else 0
        return found

    def _fail(self, why: str, *, invalid: bool = True) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - (self._text.rfind("\n", 0, self._at) + 1) + 1
        raise GrammarError(f"line {line}, column {column}: {why}", invalid=invalid)
