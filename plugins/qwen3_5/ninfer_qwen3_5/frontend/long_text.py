"""Tokenise no more of a long text than it takes to see that it does not fit."""

from __future__ import annotations

import re
from typing import NamedTuple

from ninfer_qwen3_5.frontend.tokenizer import Encoded, TextTokenizer

PIECE_CHARS = 1 << 14
LARGEST_PIECE_CHARS = 1 << 16
"""Looking for a place to part holds up every other thread, for longer the larger the piece is."""
HARD_CUT_SLACK = 64
_PLACE = re.compile(r"[^\W\d_][ \n]")
"""Finds every letter before a space or a line break, and little else."""


class Limited(NamedTuple):
    """The tokens of a text. ``complete`` False: it has more than the limit, and was cut short."""

    encoded: Encoded
    complete: bool


class _Cut(NamedTuple):
    end: int
    exact: bool


def encode_limited(
    tokenizer: TextTokenizer,
    text: str,
    limit: int,
    *,
    piece_chars: int = PIECE_CHARS,
    largest_piece_chars: int = LARGEST_PIECE_CHARS,
) -> Limited:
    """Tokenise ``text``, or its beginning as soon as that has more than ``limit`` tokens.

    A long text is taken piece by piece. Pieces end where byte pairs are never merged across, so
    that the pieces' tokens are those of the whole text. A run of ``largest_piece_chars`` without
    such a place is cut anyway, which may move a few tokens; if the text then does not clearly
    exceed the limit, it is tokenised again as a whole.
    """
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    position, slack = 0, 0
    while position < len(text):
        cut = _next_cut(tokenizer, text, position, piece_chars, largest_piece_chars)
        piece = tokenizer.encode_with_offsets(text[position : cut.end])
        ids += piece.ids
        offsets += [(start + position, end + position) for start, end in piece.offsets]
        position = cut.end
        slack += 0 if cut.exact else HARD_CUT_SLACK
        if len(ids) > limit + slack and position < len(text):
            return Limited(Encoded(ids, offsets), False)
    if slack:
        return Limited(tokenizer.encode_with_offsets(text), True)
    return Limited(Encoded(ids, offsets), True)


def _next_cut(tokenizer: TextTokenizer, text: str, start: int, size: int, largest: int) -> _Cut:
    while start + size < len(text):
        end = _boundary(tokenizer, text, start, start + size) if tokenizer.divisible else None
        if end is not None:
            return _Cut(end, True)
        if size >= largest:
            return _Cut(start + size, False)
        size *= 2
    return _Cut(len(text), True)


def _boundary(tokenizer: TextTokenizer, text: str, start: int, end: int) -> int | None:
    """The last place in ``text[start:end]`` where tokens do not depend on what follows.

    The pretokenizer must part there, and a letter must meet a space or a line break: no added
    token spans such a place, no character composes across it, and the last two pretokens, which
    the text after the window may still change, are left out.
    """
    if _PLACE.search(text, start, end) is None:
        return None
    for pretoken_end in reversed(tokenizer.pretoken_ends(text[start:end])[:-2]):
        place = start + pretoken_end
        if text[place - 1].isalpha() and text[place] in " \n":
            return place
    return None
