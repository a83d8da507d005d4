"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Matched = tuple[int, ...]


class StopScan(NamedTuple):
    """``matched`` after the text, or where ``stop`` was completed: after ``end`` characters."""

    matched: Matched
    end: int
    stop: str | None


class StopStrings:
    """Finds the first stop string to be completed; of several at one character, the longest.

    One Knuth-Morris-Pratt automaton per string: the cost is the length of the new text times the
    number of strings, whatever they look like.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(sorted(set(strings), key=len, reverse=True))
        self._borders = tuple(_borders(text) for text in self._strings)
        self.start: Matched = (0,) * len(self._strings)

    @staticmethod
    def withheld(matched: Matched) -> int:
        """How many characters at the end of the text may still become part of a stop string."""
        return max(matched, default=0)

    def scan(self, matched: Matched, text: str, armed: bool = True) -> StopScan:
        """Move on over ``text``. Unless ``armed``, completed strings are ordinary text."""
        if not self._strings:
            return StopScan(matched, len(text), None)
        lengths = list(matched)
        for index, character in enumerate(text):
            stop = self._advance(lengths, character)
            if stop is not None and armed:
                return StopScan(self.start, index + 1, stop)
        return StopScan(tuple(lengths), len(text), None)

    def _advance(self, lengths: list[int], character: str) -> str | None:
        """Move every automaton over one character; the longest string completed by it."""
        completed: str | None = None
        for number, string in enumerate(self._strings):
            borders, length = self._borders[number], lengths[number]
            while length and string[length] != character:
                length = borders[length - 1]
            if string[length] == character:
                length += 1
            if length == len(string):
                completed = completed or string
                length = borders[length - 1]
            lengths[number] = length
        return completed


def _borders(text: str) -> tuple[int, ...]:
    """For each prefix the length of its longest proper prefix that is also its suffix."""
    table = [0]
    for character in text[1:]:
        length = table[-1]
        while length and text[length] != character:
            length = table[length - 1]
        table.append(length + 1 if text[length] == character else 0)
    return tuple(table)
