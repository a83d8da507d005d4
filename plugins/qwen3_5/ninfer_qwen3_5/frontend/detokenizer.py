"""Bytes to text while they arrive, never half a character."""

from __future__ import annotations

import codecs
from typing import NamedTuple


class Decoded(NamedTuple):
    """Whole characters, and the bytes of a character that is not whole yet (at most three)."""

    text: str
    pending: bytes


def decode_step(pending: bytes, data: bytes) -> Decoded:
    """Decode ``pending + data`` as far as it goes.

    Bytes that no continuation can mend become U+FFFD at once, one per maximal ill-formed part
    (Unicode 15, section 3.9), so that the joined steps equal decoding the whole.
    """
    joined = pending + data
    text, consumed = codecs.utf_8_decode(joined, "replace", False)
    return Decoded(text, joined[consumed:])


def decode_rest(pending: bytes) -> str:
    """What an unfinished character turns into when the output ends by itself: one U+FFFD."""
    return pending.decode("utf-8", "replace")
