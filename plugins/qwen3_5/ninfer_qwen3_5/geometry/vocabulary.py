"""A tokenizer of any number of entries that no checkpoint is needed for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice, product
from string import ascii_lowercase
from typing import Final

from ninfer_core.errors import UsageError
from ninfer_qwen3_5.frontend.byte_alphabet import SYMBOLS
from ninfer_qwen3_5.frontend.vocabulary import (
    CALL_CLOSE,
    CALL_OPEN,
    THINK_CLOSE,
    THINK_OPEN,
    TURN_START,
)

MARKS: Final = (TURN_START, THINK_OPEN, THINK_CLOSE, CALL_OPEN, CALL_CLOSE)
"""What the frontend looks up. The ends of turns and texts are left out, so that nothing stops."""

LEAST: Final = 256 + len(MARKS)

TEMPLATE: Final = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def tokenizer_json(tokens: int) -> bytes:
    """A byte-level ``tokenizer.json`` with the ids 0 to ``tokens - 1``: the bytes, then words with
    a space before them, then the marks. Texts are read byte by byte. Raises UsageError."""
    if tokens < LEAST:
        raise UsageError(f"a vocabulary of {tokens} entries is too small; it needs {LEAST}")
    symbols = [*SYMBOLS, *islice(_words(), tokens - LEAST), *MARKS]
    levels = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    fields = {
        "version": "1.0",
        "added_tokens": [_mark(tokens - len(MARKS) + i, text) for i, text in enumerate(MARKS)],
        "pre_tokenizer": levels,
        "decoder": levels,
        "model": {
            "type": "BPE",
            "vocab": {symbol: index for index, symbol in enumerate(symbols)},
            "merges": [],
        },
    }
    return json.dumps(fields, ensure_ascii=False).encode()


def _words() -> Iterator[str]:
    """`` aa``, `` ab``, ... in byte symbols, shorter ones first."""
    length = 2
    while True:
        for letters in product(ascii_lowercase, repeat=length):
            yield f"{SYMBOLS[ord(' ')]}{''.join(letters)}"
        length += 1


def _mark(index: int, content: str) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": index, "content": content, **flags}
