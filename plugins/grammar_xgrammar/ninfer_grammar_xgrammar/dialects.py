"""What the escapes of expressions hold in ECMA-262 and in Python's ``re``.

ECMA-262 is read by code points (as with the flag ``u``) and without the flag ``i``: ``\\d`` and
``\\w`` are ASCII there (CharacterClassEscape), ``\\s`` is WhiteSpace and LineTerminator. For ``re``
they are what ``re`` itself finds in text.
"""

from __future__ import annotations

import enum
import re
import sys
import unicodedata
from array import array
from dataclasses import dataclass
from functools import cache
from itertools import chain

from ninfer_grammar_xgrammar import charset
from ninfer_grammar_xgrammar.charset import Ranges

_DIGIT = charset.of("0123456789")
_WORD = charset.charset([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
_ECMA_SPACE = charset.of("\t\n\v\f\r\ufeff\u2028\u2029")


class Reading(enum.Enum):
    """Which dialect an expression is read in. AGREED: what matches in it matches in both; EITHER:
    what matches in one of them matches in it, so that texts without it match in neither."""

    ECMA = "ecma"
    PYTHON = "python"
    AGREED = "agreed"
    EITHER = "either"


@dataclass(frozen=True, slots=True)
class Sets:
    """A set of characters as each dialect reads it."""

    ecma: Ranges
    python: Ranges

    @classmethod
    def same(cls, ranges: Ranges) -> Sets:
        return cls(ranges, ranges)

    def union(self, *others: Sets) -> Sets:
        return Sets(
            charset.union(self.ecma, *(other.ecma for other in others)),
            charset.union(self.python, *(other.python for other in others)),
        )

    def complement(self) -> Sets:
        return Sets(charset.complement(self.ecma), charset.complement(self.python))

    def read(self, reading: Reading) -> Ranges:
        if reading is Reading.ECMA:
            return self.ecma
        if reading is Reading.PYTHON:
            return self.python
        both = charset.intersect if reading is Reading.AGREED else charset.union
        return both(self.ecma, self.python)


NOTHING = Sets.same(())
DOT = Sets(charset.of("\n\r\u2028\u2029"), charset.of("\n")).complement()


@cache
def escaped(letter: str) -> Sets:
    """What ``\\d``, ``\\w``, ``\\s`` and their opposites ``\\D``, ``\\W``, ``\\S`` hold."""
    if letter.isupper():
        return escaped(letter.lower()).complement()
    if letter == "d":
        return Sets(_DIGIT, _python(r"\d"))
    if letter == "w":
        return Sets(_WORD, _python(r"\w"))
    space = _python(r"\s")
    codes = (code for low, high in space for code in range(low, high + 1))
    separators = [(code, code) for code in codes if unicodedata.category(chr(code)) == "Zs"]
    return Sets(charset.union(_ECMA_SPACE, charset.charset(separators)), space)


def _python(escape: str) -> Ranges:
    """The characters that ``re`` finds."""
    codes = chain.from_iterable(range(low, high + 1) for low, high in charset.ALL)
    every = array("I", codes).tobytes().decode(f"utf-32-{sys.byteorder[0]}e")
    runs = (run.group() for run in re.finditer(f"{escape}+", every))
    return charset.charset((ord(run[0]), ord(run[-1])) for run in runs)
