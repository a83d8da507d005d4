"""A share of `bench/accept/http_fuzz.py`: odd tools and forms never end in a fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).parents[2] / "bench" / "accept")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import http_fuzz

    yield http_fuzz
    for name in ("http_fuzz", "_fuzz_bodies", "_server", "_setting"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("queued", [False, True])
def test_odd_tools_are_answered_or_refused(script, queued):
    found = script.fuzz(40, 4, 4, queued)
    assert found["faults"] == []
    assert found["statuses"]["200"] > 5
    assert found["statuses"]["400"] > 5


def test_an_engine_that_ends_would_be_seen(script, monkeypatch):
    def broken(self, logits, sequences, masks, purpose):
        raise RuntimeError("fault in the machine")

    monkeypatch.setattr("ninfer_qwen3_5.program.sampler.Sampler.sample", broken)
    first, *_ = script.fuzz(8, 4, 2, False)["faults"]
    assert first["said"].startswith("503")
    assert "RuntimeError: fault in the machine" in "\n".join(first["log"])
