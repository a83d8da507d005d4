"""Stages of an output, members of a call, and what the backend keeps."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from ninfer_core.contract.errors import InvalidSchema, Overloaded
from ninfer_core.contract.frontend import ColumnState
from ninfer_core.contract.grammar import GrammarVocabulary
from ninfer_grammar_xgrammar import attempts, flights, kept
from ninfer_grammar_xgrammar.backend import XGrammarCompiler
from ninfer_grammar_xgrammar.trials.client import Verdict
from tests.grammar.conftest import CALL, CALL_END, CLOSE, END, WHOLE, source

PARTS = {
    "layout": {"kind": "text", "value": "\n\n"},
    "answer": {"kind": "json_object"},
    "call": {"kind": "text", "value": "f"},
    "gap": {"kind": "optional", "item": {"kind": "text", "value": "\n"}},
}


def stage(part, exits=(), early=(), end=False, after=None):
    return {"part": part, "exits": dict(exits), "early": dict(early), "end": end, "next": after}


FRAMING = {
    "start": 0,
    "stages": [
        stage(None, {CLOSE: 1}),
        stage("layout", after=2),
        stage("answer", early={CALL: 3}, end=True),
        stage("call", {CALL_END: 4}),
        stage("gap", {CALL: 3}, end=True),
    ],
}


def tokens(matcher):
    words = np.zeros((1, 9), dtype=np.uint32)
    assert matcher.fill((), words) == (ColumnState.READY,)
    return set(np.flatnonzero(np.unpackbits(words[0].view(np.uint8), bitorder="little")).tolist())


def test_thought_layout_answer(matcher):
    one = matcher(PARTS, FRAMING)
    free = set(range(256)) | {260, 261}
    assert tokens(one) == free | {CLOSE}, "no end within a thought"
    assert one.accept([*b"any {thought", END]) == 12
    assert one.accept([CLOSE]) == 1
    assert tokens(one) == {10}
    assert one.accept([10, 10]) == 2
    assert tokens(one) == {ord("{"), 261, CALL}
    assert one.accept([261, *b'a":1']) == 5
    assert CALL not in tokens(one)
    assert not one.complete
    assert one.accept([*b"}"]) == 1
    assert one.complete
    assert tokens(one) == {END}
    assert one.accept([END]) == 1
    assert one.accept([END]) == 0


def test_calls_one_after_another(matcher):
    one = matcher(PARTS, FRAMING)
    assert one.accept([CLOSE, 10, 10, CALL, *b"f"]) == 5
    assert tokens(one) == {CALL_END}
    assert one.accept([CALL_END]) == 1
    assert tokens(one) == {10, CALL, END}
    assert one.accept([10, CALL, *b"f", CALL_END, END]) == 5


def test_a_fork_and_a_look_ahead_leave_the_matcher_where_it_was(matcher):
    one = matcher(PARTS, FRAMING)
    one.accept([CLOSE, 10, 10])
    before = tokens(one)
    fork = one.fork()
    assert fork.accept([261, *b'k":']) == 4
    words = np.zeros((4, 9), dtype=np.uint32)
    drafts = [261, ord("x"), END]
    assert one.fill(drafts, words) == (
        *[ColumnState.READY] * 3,
        ColumnState.UNREACHABLE,
    ), "the end is not legal within a name"
    assert tokens(one) == before
    assert words[2].any()
    assert tokens(fork) != before


CALL_PART = {
    "kind": "members",
    "schema": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "n": {"type": "integer", "minimum": 3},
            "unit": {"enum": ["kg", "<g>"]},
            "size": {"type": "string", "maxLength": 2},
            "deep": {"type": "array", "items": {"type": "null"}},
        },
        "required": ["path"],
    },
    "param": "tools[0].function.parameters",
    "before": ["<parameter=", ">\n"],
    "after": "\n</parameter>\n",
    "tags": ["</parameter>", "<parameter=", "</function>"],
    "enforce": True,
}


def member(name, value):
    return f"<parameter={name}>\n{value}\n</parameter>\n"


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (member("path", "a </b> <para\n\n"), True),
        (member("path", "") + member("n", "12") + member("unit", "<g>"), True),
        (member("path", "x") + member("size", "ab") + member("deep", "[null, null]"), True),
        (member("n", "12"), False),
        (member("path", "x") + member("n", "2"), False),
        (member("path", "x") + member("unit", "g"), False),
        (member("path", "x") + member("size", "abc"), False),
        (member("path", "x") + member("other", "y"), False),
        (member("n", "12") + member("path", "x"), False),
        (member("path", "a</parameter>b"), False),
        (member("path", "a<parameter=b"), False),
    ],
)
def test_members_of_a_call(accepts, text, valid):
    assert accepts(CALL_PART, text) is valid


def test_without_enforcement_names_alone_are_kept(accepts):
    loose = {**CALL_PART, "enforce": False}
    assert accepts(loose, member("n", "any <text>"))
    assert not accepts(loose, member("other", "x"))
    anything = {**CALL_PART, "schema": {}, "enforce": False}
    assert accepts(anything, member("what", "x"))
    assert not accepts(anything, member("what", "x") * 2), "the same name twice"


def test_what_calls_cannot_carry_is_refused_or_left_open(accepts):
    mixed = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}
    with pytest.raises(InvalidSchema) as caught:
        accepts({**CALL_PART, "schema": mixed}, "")
    assert caught.value.pointer == "/properties/a"
    assert accepts({**CALL_PART, "schema": mixed, "enforce": None}, member("a", "null"))


def test_text_that_stands_already_moves_the_matcher(backend):
    part = {"kind": "regex", "pattern": "abc+"}
    begun = backend.open(backend.compile(source({"it": part}, {**WHOLE, "prefix": "ab"})))
    assert begun.accept([*b"c", END]) == 2
    with pytest.raises(InvalidSchema, match="continued"):
        backend.compile(source({"it": part}, {**WHOLE, "prefix": "b"}))


class SlowLibrary:
    """A library that compiles when it is told to."""

    def __init__(self):
        self.compiled, self.go = [], threading.Event()

    def compile(self, ebnf):
        self.compiled.append(ebnf)
        assert self.go.wait(30)
        return type("Compiled", (), {"memory_size_bytes": 100})()

    def probe(self, compiled):
        pass


class GoodTrials:
    """All goes well at once, after ``seconds`` as it says."""

    def __init__(self, seconds=1.0):
        self.seconds = seconds

    def start(self):
        pass

    ready = close = end = start

    def begin(self, ebnf, seconds):
        return self

    def verdict(self):
        return Verdict("done", seconds=self.seconds)


@pytest.fixture
def slow(monkeypatch):
    vocabulary = GrammarVocabulary(token_bytes=[b"a"], ends=frozenset({1}))
    one = XGrammarCompiler(vocabulary, GoodTrials())
    library = SlowLibrary()
    monkeypatch.setattr(one, "_loaded", lambda: library)
    yield one, library
    library.go.set()


def test_a_compile_that_takes_too_long_is_refused_and_kept_for_later(slow, monkeypatch):
    one, library = slow
    monkeypatch.setattr(flights, "COMPILE_SECONDS", 0.5)
    asked = {"kind": "regex", "pattern": "a"}
    with pytest.raises(InvalidSchema, match="longer than"):
        one._flights.get(asked)
    library.go.set()
    monkeypatch.setattr(flights, "COMPILE_SECONDS", 30)
    assert one._flights.get(asked)[1] == 100
    assert len(library.compiled) == 1


def test_a_form_that_others_keep_waiting_is_not_called_too_large(slow, monkeypatch):
    one, library = slow
    monkeypatch.setattr(flights, "COMPILE_SECONDS", 0.5)
    for pattern in "ab":
        with pytest.raises(InvalidSchema, match="longer than"):
            one._flights.get({"kind": "regex", "pattern": pattern})
    with pytest.raises(Overloaded, match="others are being compiled"):
        one._flights.get({"kind": "regex", "pattern": "c"})
    library.go.set()
    assert one._flights.get({"kind": "regex", "pattern": "c"})[1] == 100


def test_the_time_that_the_library_takes_to_load_is_not_the_forms(backend, monkeypatch):
    fresh = XGrammarCompiler(backend._vocabulary, GoodTrials())
    library = fresh._loaded()
    monkeypatch.setattr(fresh, "_loaded", lambda *param: time.sleep(0.05) or library)
    monkeypatch.setattr(fresh._trials, "ready", lambda: time.sleep(0.05))
    began, started = time.monotonic(), []
    monkeypatch.setattr(fresh._flights, "get", lambda part, at: started.append(at) or (None, 1))
    part = {"it": {"kind": "regex", "pattern": "a", "param": "it"}}
    fresh.compile(source(part, {"start": 0, "stages": [stage(None, end=True)]}))
    assert started[0] - began >= 0.1, "counted from when both were there"


def test_equal_parts_are_compiled_once_and_two_at_a_time(slow):
    one, library = slow
    parts = [{"kind": "text", "value": value} for value in ("a", "a", "b", "c", "a")]
    found = []
    threads = [
        threading.Thread(target=lambda part=part: found.append(one._flights.get(part)))
        for part in parts
    ]
    for thread in threads:
        thread.start()
    while len(library.compiled) < attempts.COLD_COMPILES:
        threading.Event().wait(0.005)
    assert len(library.compiled) == 2
    library.go.set()
    for thread in threads:
        thread.join()
    assert len(found) == 5
    assert len(library.compiled) == 3


def test_what_was_used_longest_ago_makes_way(slow, monkeypatch):
    one, library = slow
    library.go.set()
    monkeypatch.setattr(kept, "CACHE_BYTES", 250)
    for value in ("a", "b", "a", "c", "a", "b"):
        one._flights.get({"kind": "text", "value": value})
    assert len(library.compiled) == 4, "b went when c came"
