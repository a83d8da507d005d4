"""Regular expressions as they stand in schemas and requests: parsed here, so that what is accepted
is what is enforced.

The syntax is what ECMA-262 and Python's ``re`` share. Where they read it differently (what
``\\d``, ``\\w``, ``\\s`` and ``.`` hold, the line break that ``$`` may leave), a text that has to
match matches in both (Reading.AGREED), and one that must not matches in neither (Reading.EITHER).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from ninfer_grammar_xgrammar import charset
from ninfer_grammar_xgrammar.charset import Ranges
from ninfer_grammar_xgrammar.dialects import DOT, NOTHING, Reading, Sets, escaped

MAX_PATTERN = 8192
MAX_COUNT = 16_384
MAX_DEPTH = 64

_SETS = frozenset("dDwWsS")
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_UNSUPPORTED = {
    "(?=": "a lookahead",
    "(?!": "a lookahead",
    "(?<=": "a lookbehind",
    "(?<!": "a lookbehind",
}


class RegexError(ValueError):
    """``invalid``: no regular expression at all; else one that is not supported."""

    def __init__(self, message: str, *, invalid: bool) -> None:
        super().__init__(message)
        self.invalid = invalid


@dataclass(frozen=True, slots=True)
class One:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Cat:
    items: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Or:
    items: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Times:
    item: Regex
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """``^`` or ``$``."""

    begin: bool


Regex = One | Cat | Or | Times | Edge

ANY = One(charset.ALL)
ANYTHING = Times(ANY, 0, None)


def full(pattern: str, reading: Reading = Reading.AGREED) -> Regex:
    """What the whole of a text must be for ``pattern`` to match it whole. Raises RegexError."""
    return _edged(_Parser(pattern, reading).parse(), Cat(()), Cat(()))


def search(pattern: str, reading: Reading = Reading.AGREED) -> Regex:
    """What the whole of a text must be for ``pattern`` to be found in it. Raises RegexError."""
    breaks = reading in (Reading.PYTHON, Reading.EITHER)
    end = Times(One(charset.of("\n")), 0, 1) if breaks else Cat(())
    return _edged(_Parser(pattern, reading).parse(), ANYTHING, end)


def literal(text: str) -> Regex:
    return Cat(tuple(One(charset.of(c)) for c in text))


def _edged(regex: Regex, around: Regex, after: Regex) -> Regex:
    """``around``: what may stand where there is no edge; ``after``: what ``$`` may leave."""
    branches = []
    for items in _branches(regex):
        begin = bool(items) and items[0] == Edge(True)
        end = bool(items) and items[-1] == Edge(False)
        inner = items[1 if begin else 0 : len(items) - 1 if end else len(items)]
        if any(_has_edge(item) for item in inner):
            raise RegexError("it has ^ or $ elsewhere than at its ends", invalid=False)
        branches.append(Cat((Cat(()) if begin else around, *inner, after if end else around)))
    return branches[0] if len(branches) == 1 else Or(tuple(branches))


def _branches(regex: Regex) -> list[tuple[Regex, ...]]:
    """The alternatives at the top, each as a sequence; groups with an edge in them are opened."""
    if isinstance(regex, Or):
        return [items for item in regex.items for items in _branches(item)]
    items = regex.items if isinstance(regex, Cat) else (regex,)
    if items and isinstance(items[0], Or | Cat) and _has_edge(items[0]):
        opened = [Cat((*head, *items[1:])) for head in _branches(items[0])]
        return [found for branch in opened for found in _branches(branch)]
    if items and isinstance(items[-1], Or | Cat) and _has_edge(items[-1]):
        return [(*items[:-1], *tail) for tail in _branches(items[-1])]
    return [items]


def _has_edge(regex: Regex) -> bool:
    if isinstance(regex, Cat | Or):
        return any(_has_edge(item) for item in regex.items)
    return isinstance(regex, Edge) or (isinstance(regex, Times) and _has_edge(regex.item))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit()


class _Parser:
    def __init__(self, pattern: str, reading: Reading) -> None:
        if len(pattern) > MAX_PATTERN:
            raise RegexError(f"it is longer than {MAX_PATTERN} characters", invalid=False)
        self._text = pattern
        self._reading = reading
        self._at = 0
        self._depth = 0

    def parse(self) -> Regex:
        regex = self._or()
        if self._at < len(self._text):
            self._invalid("has a ')' too many")
        return regex

    def _or(self) -> Regex:
        branches = [self._cat()]
        while self._take("|"):
            branches.append(self._cat())
        return branches[0] if len(branches) == 1 else Or(tuple(branches))

    def _cat(self) -> Regex:
        items: list[Regex] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            items.append(self._quantified(self._atom()))
        return items[0] if len(items) == 1 else Cat(tuple(items))

    def _quantified(self, item: Regex) -> Regex:
        bounds = self._bounds()
        if bounds is None:
            return item
        if _has_edge(item):
            raise RegexError("it repeats ^ or $", invalid=False)
        self._take("?")  # a lazy repetition matches the same texts
        if self._text[self._at : self._at + 1] in ("*", "+") or self._bounds() is not None:
            self._invalid("repeats a repetition")
        return Times(item, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        if self._text[self._at : self._at + 1] != "{":
            return None
        end = self._text.find("}", self._at)
        parts = self._text[self._at + 1 : end].split(",") if end > 0 else []
        if not (
            1 <= len(parts) <= 2 and _is_count(parts[0]) and (not parts[-1] or _is_count(parts[-1]))
        ):
            self._invalid("has a '{' that begins no repetition; write \\{ for the character")
        low = int(parts[0])
        high = (int(parts[-1]) if parts[-1] else None) if len(parts) == 2 else low
        if high is not None and high < low:
            self._invalid(f"repeats {low} to {high} times")
        if max(low, high or 0) > MAX_COUNT:
            raise RegexError(f"it repeats more than {MAX_COUNT} times", invalid=False)
        self._at = end + 1
        return low, high

    def _atom(self) -> Regex:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return One(self._class().read(self._reading))
        if char == ".":
            return One(DOT.read(self._reading))
        if char in "^$":
            return Edge(char == "^")
        if char == "\\":
            return One(self._escape(in_class=False).read(self._reading))
        if char in "*+?":
            self._invalid(f"has nothing before {char!r} to repeat")
        if char == "{":
            self._invalid("has a '{' that begins no repetition; write \\{ for the character")
        return One(charset.of(char))

    def _group(self) -> Regex:
        for opening, what in _UNSUPPORTED.items():
            if self._text.startswith(opening, self._at - 1):
                raise RegexError(f"it has {what}", invalid=False)
        if self._take("?") and not self._take(":"):
            self._skip_name()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise RegexError(f"it has groups deeper than {MAX_DEPTH} levels", invalid=False)
        regex = self._or()
        self._depth -= 1
        if not self._take(")"):
            self._invalid("has a '(' that is not closed")
        return regex

    def _skip_name(self) -> None:
        self._take("P")
        end = self._text.find(">", self._at)
        if not self._take("<") or not self._text[self._at : end].isidentifier():
            raise RegexError("it has a group of an unknown kind, or flags", invalid=False)
        self._at = end + 1

    def _class(self) -> Sets:
        negated, parts = self._take("^"), []
        while not self._take("]"):
            low, is_set = self._class_atom()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                high, high_set = self._class_atom()
                begin, end = low.ecma[:1], high.ecma[:1]
                if is_set or high_set or not begin or not end or end < begin:
                    self._invalid("has a range that runs from nowhere to nowhere")
                low = Sets.same(charset.charset([(begin[0][0], end[0][0])]))
            parts.append(low)
        whole = NOTHING.union(*parts)
        return whole.complement() if negated else whole

    def _class_atom(self) -> tuple[Sets, bool]:
        char = self._next()
        if char != "\\":
            return Sets.same(charset.of(char)), False
        is_set = self._text[self._at : self._at + 1] in _SETS
        return self._escape(in_class=True), is_set

    def _escape(self, *, in_class: bool) -> Sets:
        char = self._next()
        if char in _SETS:
            return escaped(char)
        if char in _CONTROLS:
            return Sets.same(charset.of(_CONTROLS[char]))
        if char == "b" and in_class:
            return Sets.same(charset.of("\b"))
        if char in "xu":
            return Sets.same(self._hex(2 if char == "x" else 4))
        if char.isdigit():
            raise RegexError("it refers back to a group", invalid=False)
        if char.isalpha():
            raise RegexError(f"it has \\{char}", invalid=False)
        return Sets.same(charset.of(char))

    def _hex(self, digits: int) -> Ranges:
        text = self._text[self._at : self._at + digits]
        if len(text) < digits or any(c not in "0123456789abcdefABCDEF" for c in text):
            self._invalid("has an escape without its hexadecimal digits")
        self._at += digits
        return charset.charset([(int(text, 16), int(text, 16))])

    def _next(self) -> str:
        if self._at >= len(self._text):
            self._invalid("breaks off")
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, char: str) -> bool:
        if self._text[self._at : self._at + 1] != char:
            return False
        self._at += 1
        return True

    def _invalid(self, why: str) -> NoReturn:
        raise RegexError(f"it {why} (at character {self._at})", invalid=True)
