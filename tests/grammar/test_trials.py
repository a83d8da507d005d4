"""What is given up holds nobody back, and the process for trials ends with whoever needs it."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ninfer_core.contract.errors import InvalidSchema, Overloaded
from ninfer_grammar_xgrammar import attempts, flights
from ninfer_grammar_xgrammar.backend import XGrammarCompiler, open_backend
from ninfer_grammar_xgrammar.trials.client import Verdict
from tests.grammar._asking import VOCABULARY, Asked, jobs, regex
from tests.grammar.conftest import END, WHOLE, source
from tests.grammar.test_stages import CALL_PART

ENDLESS = """root ::= r0
r0 ::= "a"? "" [^a] | r4+ r5* r0? "a"{0,30} ""{0,30} | [a-f]
r1 ::= r5 . "a" ""* | . | [a-f]
r4 ::= [^a] "a" .+ "a"{0,30} r5? | r5{0,30} [a-z]? . [a-z] | [a-f]
r5 ::= r1? "a"* r5{0,30} | .* | [a-f]
"""
"""It compiles for minutes, with :data:`VOCABULARY`."""
SIZE = -(-len(VOCABULARY.token_bytes) // 32)


def endless(letter):
    return {"kind": "grammar", "source": f'{ENDLESS}| "{letter}"\n', "param": "it"}


@pytest.fixture(scope="module")
def shared():
    one = open_backend(VOCABULARY)
    one._prepare({"it": regex("a")}, "it")
    yield one
    one.close()


@pytest.fixture
def fresh(shared):
    """With the library and the process that are there already, and nothing kept."""
    one = XGrammarCompiler(shared._vocabulary, shared._trials)
    one._library = shared._library
    return one


def test_forms_that_are_given_up_hold_no_lawful_one_back(fresh, monkeypatch):
    monkeypatch.setattr(attempts, "TRIAL_SECONDS", 0.5)
    monkeypatch.setattr(attempts, "BLAMED_SECONDS", 0.0)
    tried, real = [], fresh._trials.begin
    monkeypatch.setattr(fresh._trials, "begin", lambda *told: tried.append(told) or real(*told))
    hostile = [Asked(fresh, endless(letter)) for letter in "gh"]
    while len(tried) < attempts.COLD_COMPILES:
        time.sleep(0.005)
    assert Asked(fresh, regex("[ab]{9}")).result().memory_bytes > 0
    for one in hostile:
        with pytest.raises(InvalidSchema, match=r"longer than 0\.5 seconds") as caught:
            one.result()
        assert (caught.value.code, caught.value.param) == ("unsupported_grammar", "it")
    jobs(fresh, 0)
    while any(one.name == "ninfer-grammar-compile" for one in threading.enumerate()):
        time.sleep(0.005)  # for minutes, if any were left to the end
    with pytest.raises(InvalidSchema, match="longer than"):
        Asked(fresh, endless("g")).result()
    assert len(tried) == 3, "what is known to be unfit is not tried again"


def test_a_trial_that_was_kept_from_working_says_nothing_of_the_form(fresh, monkeypatch):
    monkeypatch.setattr(attempts, "TRIAL_SECONDS", 0.05)
    monkeypatch.setattr(attempts, "BLAMED_SHARE", 100.0)
    with pytest.raises(Overloaded, match="others are at work"):
        Asked(fresh, endless("g")).result()
    assert not fresh._flights._unfit


@pytest.mark.parametrize(
    ("work", "elapsed", "blamed"),
    [(1.2, 3.0, False), (1.9, 3.0, False), (2.1, 3.0, True), (0.9, 1.0, True)],
)
def test_a_form_is_blamed_for_work_and_not_for_that_of_others(work, elapsed, blamed):
    error = attempts._refusal(Verdict("long"), work, elapsed)
    assert isinstance(error, attempts.Unfit if blamed else Overloaded)


def test_a_thread_that_does_not_start_is_an_error_and_the_form_may_be_asked_again(
    fresh, monkeypatch
):
    def start(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            fresh.compile(source({"it": regex("[ab]{7}")}, WHOLE))
    assert not fresh._flights._flights
    assert fresh.compile(source({"it": regex("[ab]{7}")}, WHOLE)).memory_bytes > 0


class Waiting:
    """A trial that goes on until it is ended."""

    def __init__(self, events, ebnf):
        self._events, self._ebnf, self._ended = events, ebnf, threading.Event()
        events.append(("begins", ebnf))

    def verdict(self):
        assert self._ended.wait(60)
        return Verdict("ended")

    def end(self):
        self._events.append(("ends", self._ebnf))
        self._ended.set()


def test_a_trial_ends_when_nobody_waits_for_it(fresh, monkeypatch):
    """Whoever asks for the same form then has a trial of his own."""
    monkeypatch.setattr(flights, "COMPILE_SECONDS", 0.3)
    events, real = [], fresh._trials.begin

    def begin(ebnf, seconds):
        if "[^a]" in ebnf and len(events) < 4:
            return Waiting(events, ebnf)
        events.append(("goes well", ebnf))
        return real(ebnf, seconds)

    monkeypatch.setattr(fresh._trials, "begin", begin)
    both = [Asked(fresh, regex("[^a]b")) for _ in range(2)]
    for one in both:
        with pytest.raises(Overloaded):
            one.result()
    with pytest.raises(Overloaded):
        Asked(fresh, regex("[^a]c")).result()
    monkeypatch.setattr(flights, "COMPILE_SECONDS", 60.0)
    assert Asked(fresh, regex("[^a]b")).result().memory_bytes > 0
    assert [what for what, _ in events] == ["begins", "ends", "begins", "ends", "goes well"]
    assert events[4][1] == events[0][1] != events[2][1]


def test_it_has_one_thread_and_no_device(fresh):
    pid = fresh._trials.pid
    assert len(os.listdir(f"/proc/{pid}/task")) == 1
    assert b"CUDA_VISIBLE_DEVICES=\0" in Path(f"/proc/{pid}/environ").read_bytes()


KINDS = [
    regex("[a-c]{2,5}x?"),
    {"kind": "grammar", "source": 'root ::= "a" root "b" | [c-f]+', "param": "it"},
    {"kind": "choice", "values": ["ab", "abc", '{"'], "param": "it"},
    {"kind": "json_object", "param": "it"},
    {
        "kind": "json_schema",
        "schema": {
            "properties": {"ab": {"type": "string", "pattern": "^a*b$"}},
            "required": ["ab"],
        },
        "param": "it",
        "closed": True,
    },
    CALL_PART,
    {"kind": "seq", "items": [{"kind": "text", "value": "{"}, regex("[ab]{3}")]},
]


@pytest.mark.parametrize("part", KINDS, ids=[part["kind"] for part in KINDS])
def test_masks_are_those_of_what_was_never_tried(fresh, part):
    rng, words = random.Random(1), np.zeros((2, SIZE), dtype=np.uint32)
    library = fresh._loaded()
    for _ in range(3):
        tried = fresh.open(fresh.compile(source({"it": part}, WHOLE)))
        plain = library.open(library.compile(fresh._lowered.ebnf(part)))
        for _ in range(20):
            tried.fill((), words[:1])
            plain.fill(words[1])
            bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
            rows = bits[:, : len(VOCABULARY.token_bytes)]
            rows[:, END] = 0  # who frames the text says whether it may end
            assert np.array_equal(*rows)
            if not rows[0].any():
                break
            token = int(rng.choice(np.flatnonzero(rows[0])))
            assert (tried.accept([token]), plain.accept_token(token)) == (1, True)
