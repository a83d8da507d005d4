"""A share of `bench/accept/http_schemathesis.py`: made-up requests never end in a fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).parents[2] / "bench" / "accept")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import http_schemathesis

    yield http_schemathesis
    for name in ("http_schemathesis", "_server", "_setting"):
        sys.modules.pop(name, None)


def test_made_up_requests_are_answered_without_a_fault(script):
    with script.capped(script.CAP) as url:
        found = script.explore(url, 200, 7)
    assert found["faults"] == []
    assert found["asked"] >= 200
    answered = [label for label, count in found["statuses"].items() if "200" in count]
    assert {"POST /v1/chat/completions", "POST /v1/completions", "POST /v1/messages"} <= set(
        answered
    )
