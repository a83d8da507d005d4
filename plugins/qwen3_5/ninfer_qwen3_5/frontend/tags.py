"""Finding tags in text that may end in the middle of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FUNCTION_OPEN = "<function="
FUNCTION_CLOSE = "</function>"
PARAMETER_OPEN = "<parameter="
PARAMETER_CLOSE = "</parameter>"
MAX_NAME_CHARS = 128


class Split(NamedTuple):
    """``tag`` is the first whole tag; without one, ``rest`` may be the beginning of a tag."""

    before: str
    tag: str | None
    rest: str


def split_at_tag(text: str, tags: Sequence[str]) -> Split:
    """Part ``text`` at the first of ``tags``, all of which begin with ``<``."""
    place = text.find("<")
    while place >= 0:
        for tag in tags:
            if text.startswith(tag, place):
                return Split(text[:place], tag, text[place + len(tag) :])
        tail = text[place:]
        if any(tag.startswith(tail) for tag in tags):
            return Split(text[:place], None, tail)
        place = text.find("<", place + 1)
    return Split(text, None, "")


def name_end(text: str) -> int | None:
    """Where the name that ``text`` begins with is closed by ``>``.

    -1 while it may still be closed; None if it is no name: too long, or broken off.
    """
    for index, character in enumerate(text[: MAX_NAME_CHARS + 1]):
        if character == ">":
            return index or None
        if character in "<\n":
            return None
    return -1 if len(text) <= MAX_NAME_CHARS else None
