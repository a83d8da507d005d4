"""The grammar backend over a vocabulary of single bytes, and the generators of the acceptance."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninfer_core.contract.frontend import GrammarSource
from ninfer_core.contract.grammar import GrammarVocabulary, Matcher

sys.path.append(str(Path(__file__).parents[2] / "bench" / "accept"))

END = 256
CLOSE, CALL, CALL_END = 257, 258, 259
WHOLE = {"start": 0, "stages": [{"part": "it", "exits": {}, "early": {}, "end": True}]}


def source(parts: dict[str, Any], framing: dict[str, Any]) -> GrammarSource:
    text, frame = json.dumps({"parts": parts}), json.dumps(framing)
    return GrammarSource("any", text, frame, (text + frame).encode())


@pytest.fixture(scope="session")
def backend():
    from ninfer_grammar_xgrammar.backend import open_backend

    texts = [*(bytes([value]) for value in range(256)), b"", b"", b"", b"", b"ab", b'{"']
    return open_backend(GrammarVocabulary(token_bytes=texts, ends=frozenset({END})))


@pytest.fixture(scope="session")
def matcher(backend) -> Callable[..., Matcher]:
    """A matcher of one part, or of several parts under a framing."""

    def make(part: dict[str, Any], framing: dict[str, Any] | None = None) -> Matcher:
        wanted = source({"it": part} if framing is None else part, framing or WHOLE)
        backend.check(wanted)
        return backend.open(backend.compile(wanted))

    return make


@pytest.fixture(scope="session")
def accepts(matcher) -> Callable[[dict[str, Any], str], bool]:
    """Whether a part takes the whole of a text, and then the end."""

    def check(part: dict[str, Any], text: str) -> bool:
        tokens = [*text.encode(), END]
        return bool(matcher(part).accept(tokens) == len(tokens))

    return check
