"""A share of `bench/accept/http_soak.py`: clients that come and go, for a quarter of a minute."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).parents[2] / "bench" / "accept")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import http_soak

    yield http_soak
    for name in ("http_soak", "_server", "_setting"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_or_kept(script):
    with script.served(*script.START) as server:
        tally = asyncio.run(script.soak(server, 64, 15.0, 1))
        script.returned(server, tally)
    assert tally.wrong == []
    assert tally.most_running == script.PLACES
    assert tally.most_waiting == script.WAITING
    assert all(tally.counts[kind] > 0 for kind in ("200", "429", "left"))


def test_a_doubled_or_lost_piece_would_be_seen(script):
    def event(text, finish=None, usage=None):
        choices = [{"text": text, "finish_reason": finish}]
        return b"data: " + json.dumps({"choices": choices, "usage": usage}).encode() + b"\n\n"

    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    last = event("", "stop", usage)
    done = b"data: [DONE]\n\n"

    def problems(data):
        headers = {"x-request-id": "a"}
        return script._problems(200, headers, data, True, "a", "12", usage)

    assert problems(event("1") + event("2") + last + done) == []
    assert problems(event("1") + event("2") + event("2") + last + done)
    assert problems(event("1") + last + done)
    for cut in (event("1") + last, last + done + done, event("1") + last + last + done, last[:-1]):
        with pytest.raises(AssertionError):
            problems(cut)
    assert script._problems(200, {"x-request-id": "b"}, b"", True, "a", "", usage)
    assert script._problems(429, {"x-request-id": "a"}, b"", True, "a", "", usage)
