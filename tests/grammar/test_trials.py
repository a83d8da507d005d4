"""What is given up holds nobody back, and the process for trials ends with whoever needs it."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ninfer_core.contract.errors import InvalidSchema, Overloaded, Unsupported
from ninfer_core.contract.grammar import GrammarVocabulary
from ninfer_grammar_xgrammar import attempts, flights
from ninfer_grammar_xgrammar.attempts import asked_for
from ninfer_grammar_xgrammar.backend import XGrammarCompiler, open_backend
from ninfer_grammar_xgrammar.trials import client
from ninfer_grammar_xgrammar.trials.client import Verdict
from tests.grammar.conftest import END, WHOLE, source
from tests.grammar.test_stages import CALL_PART
from tests.grammar.test_trial_jobs import children

ENDLESS = """root ::= r0
r0 ::= "a"? "" [^a] | r4+ r5* r0? "a"{0,30} ""{0,30} | [a-f]
r1 ::= r5 . "a" ""* | . | [a-f]
r4 ::= [^a] "a" .+ "a"{0,30} r5? | r5{0,30} [a-z]? . [a-z] | [a-f]
r5 ::= r1? "a"* r5{0,30} | .* | [a-f]
"""
"""It compiles for minutes, with :data:`VOCABULARY`."""
WORDS = [bytes(random.Random(i).choices(b"abcdefgh", k=2 + i % 7)) for i in range(1000)]
VOCABULARY = GrammarVocabulary(
    token_bytes=[*(bytes([value]) for value in range(256)), b"", *WORDS], ends=frozenset({END})
)
SIZE = -(-len(VOCABULARY.token_bytes) // 32)
QUICK_START = "tests.grammar._trials_served"


def endless(letter):
    return {"kind": "grammar", "source": f'{ENDLESS}| "{letter}"\n', "param": "it"}


def regex(pattern):
    return {"kind": "regex", "pattern": pattern, "param": "it"}


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


@pytest.fixture
def quick(shared, monkeypatch):
    """With a process of its own, which does what the source says."""
    monkeypatch.setattr(client, "MODULE", QUICK_START)
    one = open_backend(VOCABULARY)
    one._library = shared._library
    yield one
    one.close()


def jobs(compiler, count):
    """Those that run, once there are ``count``."""
    while len(found := children(compiler._trials.pid)) != count:
        time.sleep(0.005)
    return found


class Asked(threading.Thread):
    """Asks for a part; ``outcome`` is an error or what was compiled."""

    def __init__(self, compiler, part):
        super().__init__()
        self._compiler, self._part = compiler, part
        self.start()

    def run(self):
        try:
            self.outcome = self._compiler.compile(source({"it": self._part}, WHOLE))
        except Exception as error:
            self.outcome = error

    def result(self):
        self.join(60)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def test_forms_that_are_given_up_hold_no_lawful_one_back(fresh, monkeypatch):
    monkeypatch.setattr(attempts, "TRIAL_SECONDS", 0.5)
    monkeypatch.setattr(attempts, "BLAMED_SECONDS", 0.0)
    hostile = [Asked(fresh, endless(letter)) for letter in "gh"]
    jobs(fresh, attempts.COLD_COMPILES)
    assert Asked(fresh, regex("[ab]{9}")).result().memory_bytes > 0
    for one in hostile:
        with pytest.raises(InvalidSchema, match=r"longer than 0\.5 seconds") as caught:
            one.result()
        assert (caught.value.code, caught.value.param) == ("unsupported_grammar", "it")
    jobs(fresh, 0)
    assert not [one for one in threading.enumerate() if one.name == "ninfer-grammar-compile"]
    with pytest.raises(InvalidSchema, match="longer than"):  # without another trial
        monkeypatch.setattr(fresh._trials, "begin", None) or Asked(fresh, endless("g")).result()


def test_a_trial_that_was_kept_from_working_says_nothing_of_the_form(fresh, monkeypatch):
    monkeypatch.setattr(attempts, "TRIAL_SECONDS", 0.05)
    with pytest.raises(Overloaded, match="others are at work"):
        Asked(fresh, endless("g")).result()
    assert not fresh._flights._unfit


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


@pytest.fixture
def spelled(quick, monkeypatch):
    """``quick``, whose sources reach the process as they are, and the library as ``"a"``."""
    monkeypatch.setattr(quick._lowered, "ebnf", lambda part: part["source"])
    real = quick._library.compile
    monkeypatch.setattr(quick._library, "compile", lambda ebnf: real('root ::= "a"'))
    return quick


def said(source):
    return {"kind": "grammar", "source": source, "param": "it"}


def test_the_death_of_a_job_is_an_error_of_its_form(spelled):
    for ebnf, why in (("crash", "was killed by SIGSEGV"), ("memory", "too much memory")):
        with pytest.raises(InvalidSchema, match=why) as caught:
            Asked(spelled, said(ebnf)).result()
        assert (caught.value.code, caught.value.param) == ("unsupported_grammar", "it")
        assert Asked(spelled, said(f"root, not {ebnf}")).result().memory_bytes > 0


def test_the_death_of_the_process_is_an_error_of_its_forms_and_it_starts_again(spelled):
    asked = Asked(spelled, said("forever"))
    while (before := spelled._trials.pid) is None:
        time.sleep(0.005)
    jobs(spelled, 1)
    os.kill(before, signal.SIGKILL)
    with pytest.raises(Overloaded, match="was killed by SIGKILL") as caught:
        asked.result()
    assert caught.value.hint == "try again"
    assert Asked(spelled, said("root")).result().memory_bytes > 0
    assert spelled._trials.pid != before


def test_a_process_that_says_nothing_is_ended(spelled, monkeypatch):
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(attempts, "TRIAL_SECONDS", 0.3)
    asked = Asked(spelled, said("forever"))
    while spelled._trials.pid is None:
        time.sleep(0.005)
    jobs(spelled, 1)
    os.kill(spelled._trials.pid, signal.SIGSTOP)
    with pytest.raises(Overloaded, match="did not answer"):
        asked.result()
    assert Asked(spelled, said("root")).result().memory_bytes > 0


def test_what_the_library_raises_is_raised(quick, monkeypatch):
    """It is tried by a library that takes what is no grammar for one."""
    monkeypatch.setattr(quick._lowered, "ebnf", lambda part: part["source"])
    with pytest.raises(RuntimeError, match="EBNF"):
        Asked(quick, said("nonsense")).result()


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


def test_parts_of_a_known_size_need_no_process(quick):
    loose = {**CALL_PART, "enforce": False}
    for part in ({"kind": "json_object", "param": "it"}, loose, {"kind": "text", "value": "a"}):
        assert not asked_for(part)
        quick.compile(source({"it": part}, WHOLE))
    assert quick._trials.pid is None


def test_a_process_that_does_not_start_is_named(quick, monkeypatch):
    monkeypatch.setattr(client, "MODULE", "ninfer_grammar_xgrammar.trials.not_there")
    with pytest.raises(Unsupported, match="exited with code 1") as caught:
        quick.compile(source({"it": regex("a")}, WHOLE))
    assert caught.value.param == "it"


@pytest.mark.parametrize("how", ["closed", "dropped"])
@pytest.mark.parametrize("ready", [False, True])
def test_it_ends_with_its_backend(monkeypatch, how, ready):
    monkeypatch.setattr(client, "MODULE", QUICK_START)
    one = open_backend(VOCABULARY)
    one._trials.start()
    if ready:
        one._trials.ready()
    pid = one._trials.pid
    if how == "closed":
        one.close()
        one.close()
        with pytest.raises(Unsupported, match="was closed"):
            one.compile(source({"it": regex("a")}, WHOLE))
    else:
        del one
        gc.collect()
    assert not Path(f"/proc/{pid}").exists()


SCRIPT = """
import sys
from ninfer_core.contract.grammar import GrammarVocabulary
from ninfer_grammar_xgrammar.trials import client
client.MODULE = sys.argv[1]
trials = client.Trials(GrammarVocabulary(token_bytes=[b"a", b""], ends=frozenset({1})))
trials.ready()
print(trials.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_it_ends_with_its_engine(how):
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, QUICK_START], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as engine:
        pid = int(engine.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        if how == "is killed":
            engine.kill()
        engine.stdin.close()
        assert engine.wait(30) == (-9 if how == "is killed" else 0)
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.005)
