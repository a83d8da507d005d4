"""Thoughts that a client carries: in the open, or packed where it only sends opaque content back.

The packed form saves a client that keeps its own history from losing a thought; it hides nothing.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Final

from ninfer_gateway_http.responses.items import Item

_MARK: Final = "ninfer1."
_MAX_BYTES: Final = 8 << 20


def packed(thought: str) -> str:
    """``thought`` as one opaque word."""
    return _MARK + base64.b64encode(zlib.compress(thought.encode())).decode()


def unpacked(word: str) -> str | None:
    """The thought in ``word``; None when it was not packed here, is damaged, or beyond reason."""
    if not word.startswith(_MARK):
        return None
    inflate = zlib.decompressobj()
    try:
        data = base64.b64decode(word[len(_MARK) :], validate=True)
        thought = inflate.decompress(data, _MAX_BYTES)
        return None if inflate.unconsumed_tail or not inflate.eof else thought.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError):
        return None


def thought_of(item: Item) -> str:
    """What a reasoning item says: its content, else its packed content, else its summary."""
    content = "".join(part["text"] for part in item.get("content") or ())
    if content:
        return content
    hidden = unpacked(item.get("encrypted_content") or "")
    return hidden or "".join(part["text"] for part in item.get("summary") or ())


def is_foreign(item: Item) -> bool:
    """Whether a reasoning item holds only what another server packed."""
    return bool(item.get("encrypted_content")) and not thought_of(item)
