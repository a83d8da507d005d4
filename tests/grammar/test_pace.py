"""Masks that take too long: refused when compiled, and ended where that was not seen."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ninfer_core.contract.errors import InvalidSchema
from ninfer_grammar_xgrammar import pace
from ninfer_grammar_xgrammar.backend import XGrammarCompiler
from ninfer_grammar_xgrammar.pace import Pace, TooSlow, probe
from tests.grammar.conftest import WHOLE, source

SOURCE = source({"it": {"kind": "regex", "pattern": "[ab]{9}", "param": "it"}}, WHOLE)


def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Fake:
    """A matcher of three tokens whose masks take ``seconds``."""

    def __init__(self, seconds, taken):
        self.seconds, self.taken = seconds, taken

    def fill(self, words):
        burn(self.seconds)
        words[0] = 0b10101

    def accept_token(self, token):
        self.taken.append(token)
        return True


def test_the_probe_walks_the_same_way_every_time():
    first, second = [], []
    probe(lambda: Fake(0.0, first), 2)
    probe(lambda: Fake(0.0, second), 2)
    assert first == second
    assert len(first) == 16
    assert set(first) == {0, 2, 4}
    probe(lambda: Fake(0.0, first), 2, ends=[0, 4])
    assert first[16:] == [2] * 16


def test_the_probe_ends_as_soon_as_it_knows():
    taken = []
    with pytest.raises(TooSlow):
        probe(lambda: Fake(0.02, taken), 2)
    assert len(taken) == 3


def test_a_request_may_take_a_share_for_each_mask_and_some_more(monkeypatch):
    monkeypatch.setattr(pace, "GRACE_SECONDS", 0.03)
    one = Pace()
    for _ in range(5):
        one.begin()
        burn(0.001)
        one.end(masks=1)
    one.begin()
    burn(0.1)
    one.end(masks=1)
    with pytest.raises(TooSlow, match="6 masks"):
        one.begin()


def test_forks_share_what_they_took(backend, monkeypatch):
    one = backend.open(backend.compile(SOURCE))
    words = np.zeros((4, 9), dtype=np.uint32)
    monkeypatch.setattr(pace, "GRACE_SECONDS", -1.0)
    fork = one.fork()
    for matcher in (one, fork):
        with pytest.raises(TooSlow):
            matcher.fill([97, 98], words)
    monkeypatch.setattr(pace, "GRACE_SECONDS", 0.5)
    assert len(fork.fill([97, 98], words)) == 3


def test_what_is_too_slow_is_refused_and_remembered(backend, monkeypatch):
    fresh = XGrammarCompiler(backend._vocabulary, backend._trials)
    tried = []
    real = fresh._trials.begin
    monkeypatch.setattr(fresh._trials, "begin", lambda *told: tried.append(told) or real(*told))
    monkeypatch.setattr(pace, "MASK_SECONDS", -1.0)
    for _ in range(2):
        with pytest.raises(InvalidSchema, match="token by token") as caught:
            fresh.compile(SOURCE)
        assert (caught.value.code, caught.value.param) == ("unsupported_regex", "it")
    assert len(tried) == 1
