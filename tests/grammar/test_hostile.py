"""Forms that are built to explode: whatever they are, the answer is a refusal by name or a
grammar. How soon is measured by ``bench/accept/constrained_hostile.py``."""

from __future__ import annotations

import time

import numpy as np
import pytest
from _hostile import hostile

from ninfer_core.contract.errors import InvalidSchema, Overloaded
from ninfer_grammar_xgrammar import limits
from tests.grammar.conftest import WHOLE, source

FIELDS = {"json_schema": "schema", "regex": "pattern", "grammar": "source", "choice": "values"}
FORMS = {
    name: {"kind": kind, FIELDS[kind]: value, "param": "it", "closed": True}
    for name, kind, value in hostile(seed=1, drawn=24)
    if kind in FIELDS and name != "json_schema 3000 arrays"  # it cannot be written as JSON here
}
REFUSED = {
    "json_schema 50000 optional": "unsupported_json_schema",
    "json_schema itself": "invalid_json_schema",
    "json_schema items 10**9": "unsupported_json_schema",
    "json_schema product of 9 times 9": "unsupported_json_schema",
    "regex 10**9": "unsupported_regex",
    "regex 5000 groups": "unsupported_regex",
    "grammar 5000 groups": "unsupported_grammar",
    "grammar 20000 rules": "unsupported_grammar",
    "choice 100000": "unsupported_choice",
}


@pytest.mark.parametrize("name", FORMS)
def test_it_is_a_grammar_or_refused_by_name(backend, monkeypatch, name):
    monkeypatch.setattr(limits, "LOWERING_SECONDS", 0.2)
    refusal = None
    try:
        backend.check(source({"it": FORMS[name]}, WHOLE))
    except InvalidSchema as error:
        refusal = error
    if refusal is None:
        assert name not in REFUSED
        return
    assert refusal.param == "it"
    assert refusal.code.partition("_")[0] in ("invalid", "unsupported", "unsatisfiable")
    assert refusal.code == REFUSED.get(name, refusal.code)


AMBIGUOUS = [f"grammar {name}" for name in ("ambiguous", "stars", "left", "hidden left")]


@pytest.mark.parametrize("name", [*(name for name in FORMS if "drawn" in name), *AMBIGUOUS])
def test_what_is_compiled_gives_masks(backend, matcher, monkeypatch, name):
    monkeypatch.setattr(limits, "LOWERING_SECONDS", 0.1)
    try:
        one = matcher(FORMS[name])
    except InvalidSchema:
        return
    words = np.zeros((1, 9), dtype=np.uint32)
    for _ in range(4):
        one.fill((), words)
        assert words.any(), "a grammar without a first text is unsatisfiable, and refused"
        allowed = np.flatnonzero(np.unpackbits(words[0].view(np.uint8), bitorder="little"))
        assert one.accept([int(allowed[0])]) == 1
        if one.complete:
            break


def test_work_is_counted_and_waiting_is_bounded(monkeypatch):
    def spin(seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            limits.check()

    monkeypatch.setattr(limits, "LOWERING_SECONDS", 0.01)
    with limits.limited(), pytest.raises(limits.TooLarge, match=r"0\.01 seconds"):
        spin(30)
    monkeypatch.setattr(limits, "LOWERING_SECONDS", 30.0)
    monkeypatch.setattr(limits, "WAITING_SECONDS", 0.01)
    with limits.limited(), pytest.raises(Overloaded) as caught:
        spin(30)
    assert caught.value.hint == "try again"
    spin(0.05)
