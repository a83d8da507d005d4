"""How characters of a text are spelled in the output: as they are, or inside a JSON string.

Every character has exactly one spelling in JSON: itself, or the short escape, or ``\\u00XX`` for
the control characters without one.
"""

from __future__ import annotations

import enum
import json

from ninfer_grammar_xgrammar import charset
from ninfer_grammar_xgrammar.charset import Ranges
from ninfer_grammar_xgrammar.nodes import EMPTY, Chars, Loop, Many, Node, Seq, alt, optional, seq
from ninfer_grammar_xgrammar.regex import ANYTHING, Cat, One, Or, Regex, RegexError, Times

MAX_UNROLLED = 4096
"""Copies that the repetitions of one expression may come to."""
MAX_NESTED = 256
"""How often a group may be repeated beyond the least number."""
_KEPT_ESCAPES = 3
"""Repetitions up to which a character set keeps its escaped members; see :func:`spell`."""

_ESCAPED: Ranges = charset.charset([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])
_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


class Form(enum.Enum):
    """JSON: within the quotes of a JSON string. PLAIN: as it is. TAGGED: as it is, in front of a
    closing tag on a line of its own: without ``<`` and line breaks."""

    JSON = "json"
    PLAIN = "plain"
    TAGGED = "tagged"


def spell(regex: Regex, form: Form) -> Node:
    """The texts of ``regex``, spelled.

    A set that is repeated up to a bound is spelled without its escaped members (quotes, backslashes
    and control characters in JSON): the library counts single characters well, and sequences badly.
    Whatever is produced matches; of a string with counted characters, that much is left out. Raises
    RegexError for an expression that grows too large.
    """
    if _size(regex) > MAX_UNROLLED:
        raise RegexError("its repetitions of groups are too many", invalid=False)
    return _Speller(form).node(regex)


def spell_text(text: str, form: Form) -> str:
    """One text, spelled."""
    if form is Form.JSON:
        return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "\x7f")
    return text


def _size(regex: Regex) -> int:
    """Places that the expression has when its groups are repeated by writing them out."""
    if isinstance(regex, Cat | Or):
        return 1 + sum(_size(item) for item in regex.items)
    if isinstance(regex, Times) and not isinstance(regex.item, One):
        most = max(regex.low, regex.high or 0, 1)
        nested = MAX_UNROLLED if (regex.high or 0) - regex.low > MAX_NESTED else 0
        return nested + most * _size(regex.item)
    return 1


class _Speller:
    def __init__(self, form: Form) -> None:
        self._form = form

    def node(self, regex: Regex) -> Node:
        if isinstance(regex, One):
            return _chars(regex.ranges, self._form)
        if isinstance(regex, Cat):
            return seq(*(self.node(item) for item in regex.items))
        if isinstance(regex, Or):
            return alt(*(self.node(item) for item in regex.items))
        if isinstance(regex, Times):
            return self._times(regex)
        raise RegexError("it has ^ or $ elsewhere than at its ends", invalid=False)

    def _times(self, regex: Times) -> Node:
        item, low, high = regex.item, regex.low, regex.high
        if isinstance(item, One):
            return self._counted(item.ranges, low, high)
        node = self.node(item)
        copies = [node] * low
        if high is None:
            return seq(*copies, Loop(node))
        tail: Node = EMPTY
        for _ in range(high - low):
            tail = optional(seq(node, tail))
        return seq(*copies, tail)

    def _counted(self, ranges: Ranges, low: int, high: int | None) -> Node:
        whole = _chars(ranges, self._form)
        plain = charset.minus(ranges, _reserved(self._form))
        rest = EMPTY if high is not None else _loop(ranges, self._form)
        most = low if high is None else high
        if isinstance(whole, Chars) or (plain and most > _KEPT_ESCAPES):
            if isinstance(whole, Chars) and high is None:
                return Many(whole, low, None)
            return seq(Many(Chars(plain), low, most), rest) if most else rest
        copies: list[Node] = [whole] * low
        tail = rest
        for _ in range(most - low):
            tail = optional(seq(whole, tail))
        return seq(*copies, tail)


def _loop(ranges: Ranges, form: Form) -> Node:
    node = _chars(ranges, form)
    return Many(node, 0, None) if isinstance(node, Chars) else Loop(node)


def _reserved(form: Form) -> Ranges:
    if form is Form.JSON:
        return _ESCAPED
    return charset.of("<\n") if form is Form.TAGGED else ()


def _chars(ranges: Ranges, form: Form) -> Node:
    plain = charset.minus(ranges, _reserved(form))
    if form is not Form.JSON:
        return Chars(plain)
    escapes = charset.intersect(ranges, _ESCAPED)
    short = [letter for char, letter in _SHORT.items() if charset.contains(escapes, ord(char))]
    branches: list[Node] = [Chars(plain)] if plain else []
    if short:
        branches.append(seq("\\", Chars(charset.of("".join(short)))))
    long = [c for c in range(0x20) if charset.contains(escapes, c) and chr(c) not in _SHORT]
    for high in (0, 1):
        digits = "".join(f"{c & 15:x}" for c in long if c >> 4 == high)
        if digits:
            branches.append(seq(f"\\u00{high}", Chars(charset.of(digits))))
    return alt(*branches)


ANY_TEXT: Node = spell(ANYTHING, Form.JSON)
"""Inside of any JSON string."""


def quoted(inside: Node) -> Node:
    """A JSON string. The quotes stand in one rule with what is inside: the library then knows what
    a token that closes the string may go on with."""
    return seq('"', inside, '"')


__all__ = ["ANY_TEXT", "Form", "Seq", "quoted", "spell", "spell_text"]
