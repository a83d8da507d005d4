"""A share of `bench/accept/http_equal.py`: streamed and whole answers are equal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).parents[2] / "bench" / "accept")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import http_equal

    yield http_equal
    sys.modules.pop("http_equal")


def test_streamed_and_whole_answers_are_equal(demo, script):
    assert script.unequal(demo.url, 20, 7, 4) == []


def test_a_difference_would_be_seen(script):
    chunk = b'data: {"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":%s}\n\n'
    usage = (
        b'{"prompt_tokens":1,"completion_tokens":1,'
        b'"completion_tokens_details":{"reasoning_tokens":0}}'
    )
    found = script.joined(chunk % usage + b"data: [DONE]\n\n")
    assert found["choices"][0]["text"] == "a"
    assert found["usage"] == [1, 1, 0]
    for broken in (chunk % usage, b"data: \xff\n\ndata: [DONE]\n\n"):
        with pytest.raises((AssertionError, UnicodeDecodeError)):
            script.joined(broken)
