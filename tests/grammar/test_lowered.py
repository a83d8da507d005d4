"""Equal sources that come together are worked out once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ninfer_core.contract.errors import InvalidSchema
from ninfer_grammar_xgrammar import lowered
from ninfer_grammar_xgrammar.lowered import Lowered
from ninfer_grammar_xgrammar.nodes import Grammar, seq

MANY = 8


def part(pattern):
    return {"kind": "regex", "pattern": pattern, "param": "it"}


@pytest.fixture
def slowly(monkeypatch):
    """What was worked out, once ``go`` lets it; ``error`` is raised then, if there is one."""

    class Slowly:
        def __init__(self):
            self.begun, self.go, self.seen, self.error = threading.Event(), threading.Event(), [], 0

        def grammar(self, wanted):
            self.seen.append(wanted["pattern"])
            self.begun.set()
            assert self.go.wait(30)
            if self.error:
                raise InvalidSchema("it is wrong", param="it")
            return Grammar({"root": seq(wanted["pattern"])})

    one = Slowly()
    monkeypatch.setattr(lowered, "part_grammar", one.grammar)
    return one


def together(all_of, slowly, wanted, monkeypatch):
    """Asks from many threads while the first works, and lets it go on when all have come."""
    came, real = threading.Semaphore(0), lowered.key_of
    monkeypatch.setattr(lowered, "key_of", lambda one: came.release() or real(one))
    with ThreadPoolExecutor(MANY) as pool:
        asked = [pool.submit(all_of.ebnf, wanted)]
        assert slowly.begun.wait(30)
        asked += [pool.submit(all_of.ebnf, wanted) for _ in range(MANY - 1)]
        assert all(came.acquire(timeout=30) for _ in range(MANY))
        time.sleep(0.05)
        slowly.go.set()
        return [one.exception(30) or one.result() for one in asked]


def test_one_works_for_all(slowly, monkeypatch):
    all_of = Lowered()
    assert set(together(all_of, slowly, part("a"), monkeypatch)) == {'root ::= "a"\n'}
    assert all_of.ebnf(part("a")) == 'root ::= "a"\n'
    assert slowly.seen == ["a"]


def test_a_refusal_is_for_all_who_wait_and_is_not_kept(slowly, monkeypatch):
    all_of = Lowered()
    slowly.error = 1
    assert {type(one) for one in together(all_of, slowly, part("a"), monkeypatch)} == {
        InvalidSchema
    }
    count = len(slowly.seen)
    assert count < MANY
    with pytest.raises(InvalidSchema):
        all_of.ebnf(part("a"))
    assert len(slowly.seen) == count + 1


def test_others_go_on_meanwhile(slowly):
    all_of = Lowered()
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(all_of.ebnf, part(letter)) for letter in "ab"]
        while len(slowly.seen) < 2:
            slowly.begun.wait(0.01)
        slowly.go.set()
        assert [one.result(30) for one in both] == ['root ::= "a"\n', 'root ::= "b"\n']


def test_only_the_last_are_kept(monkeypatch):
    monkeypatch.setattr(lowered, "KEPT", 2)
    seen = []
    monkeypatch.setattr(
        lowered, "part_grammar", lambda one: seen.append(1) or Grammar({"root": seq("a")})
    )
    all_of = Lowered()
    for letter in "abacbac":
        all_of.ebnf(part(letter))
    # a, b; a again; c in place of b; b in place of a; a in place of c; c in place of b
    assert len(seen) == 6
