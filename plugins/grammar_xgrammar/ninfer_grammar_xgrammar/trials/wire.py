"""Messages between the two processes: JSON with bytes behind it."""

from __future__ import annotations

import json
import os
import struct
from itertools import pairwise
from typing import Any

from ninfer_core.contract.grammar import GrammarVocabulary

Message = dict[str, Any]
_SIZES = struct.Struct(">QQ")


def send(descriptor: int, message: Message, data: bytes = b"") -> None:
    """Raises OSError once the other side is gone."""
    text = json.dumps(message).encode()
    left = memoryview(_SIZES.pack(len(text), len(data)) + text + data)
    while left:
        left = left[os.write(descriptor, left) :]


def receive(descriptor: int) -> tuple[Message, bytes] | None:
    """The next message; None once the other side is gone."""
    sizes = _exactly(descriptor, _SIZES.size)
    if sizes is None:
        return None
    text, data = (_exactly(descriptor, size) for size in _SIZES.unpack(sizes))
    return None if text is None or data is None else (json.loads(text), data)


def send_vocabulary(descriptor: int, vocabulary: GrammarVocabulary) -> None:
    texts = vocabulary.token_bytes
    message = {"sizes": [len(text) for text in texts], "ends": sorted(vocabulary.ends)}
    send(descriptor, message, b"".join(texts))


def receive_vocabulary(descriptor: int) -> GrammarVocabulary | None:
    found = receive(descriptor)
    if found is None:
        return None
    message, data = found
    starts = [0]
    for size in message["sizes"]:
        starts.append(starts[-1] + size)
    texts = [data[start:end] for start, end in pairwise(starts)]
    return GrammarVocabulary(token_bytes=texts, ends=frozenset(message["ends"]))


def _exactly(descriptor: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
