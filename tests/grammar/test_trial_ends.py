"""How the process for trials ends, and what becomes of those who need it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ninfer_core.contract.errors import InvalidSchema, Overloaded, Unsupported
from ninfer_grammar_xgrammar import attempts
from ninfer_grammar_xgrammar.attempts import asked_for
from ninfer_grammar_xgrammar.backend import open_backend
from ninfer_grammar_xgrammar.trials import client
from tests.grammar._asking import VOCABULARY, Asked, jobs, regex
from tests.grammar.conftest import WHOLE, source
from tests.grammar.test_stages import CALL_PART
from tests.grammar.test_trial_jobs import state

QUICK_START = "tests.grammar._trials_served"


@pytest.fixture(scope="module")
def library():
    return open_backend(VOCABULARY)._loaded()


@pytest.fixture
def quick(library, monkeypatch):
    """With a process of its own, which does what the source says."""
    monkeypatch.setattr(client, "MODULE", QUICK_START)
    one = open_backend(VOCABULARY)
    one._library = library
    yield one
    one.close()


@pytest.fixture
def spelled(quick, monkeypatch):
    """``quick``, whose sources reach the process as they are, and the library as ``"a"``."""
    monkeypatch.setattr(quick._lowered, "ebnf", lambda part: part["source"])
    real = quick._library.compile
    monkeypatch.setattr(quick._library, "compile", lambda ebnf: real('root ::= "a"'))
    return quick


def said(source):
    return {"kind": "grammar", "source": source, "param": "it"}


def test_what_becomes_of_a_job_is_an_error_of_its_form(spelled):
    for ebnf, why in (
        ("crash", "was killed by SIGSEGV"),
        ("memory", "too much memory"),
        ("nonsense", "ValueError: no grammar"),
    ):
        with pytest.raises(InvalidSchema, match=why) as caught:
            Asked(spelled, said(ebnf)).result()
        assert (caught.value.code, caught.value.param) == ("unsupported_grammar", "it")
        assert Asked(spelled, said(f"root, not {ebnf}")).result().memory_bytes > 0


def test_a_job_that_the_system_kills_says_nothing_of_its_form(spelled):
    with pytest.raises(Overloaded, match="was killed by SIGKILL"):
        Asked(spelled, said("killed")).result()
    assert not spelled._flights._unfit


def test_closing_ends_a_process_that_takes_no_message(quick, monkeypatch):
    monkeypatch.setattr(client, "END_SECONDS", 0.2)
    quick._trials.ready()
    process = quick._trials._process
    os.kill(process.pid, signal.SIGSTOP)
    sends = threading.Thread(target=process.send, args=({}, bytes(1 << 20)), daemon=True)
    sends.start()
    while process._lock.acquire(blocking=False):
        process._lock.release()
        time.sleep(0.005)
    closes = threading.Thread(target=quick.close, daemon=True)
    closes.start()
    closes.join(10)
    stuck = closes.is_alive()
    process.kill()
    closes.join(10)
    sends.join(10)
    assert not stuck
    assert process.begin("root", 1.0).verdict().outcome == "lost"
    assert not process._calls


def test_closing_amid_a_message_leaves_other_files_alone(quick, monkeypatch):
    """Both the vocabulary and a trial are written to descriptors of their own."""
    written = []
    for name in ("send", "send_vocabulary"):
        monkeypatch.setattr(client.wire, name, spy(written, getattr(client.wire, name)))
    quick._trials.ready()
    process = quick._trials._process
    process.begin("root", 1.0).verdict()
    assert len(written) >= 2
    assert process._popen.stdin.fileno() not in written


def test_a_process_that_no_thread_hears_ends(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    spawned, real = [], client._spawn
    monkeypatch.setattr(client, "MODULE", QUICK_START)
    monkeypatch.setattr(client, "_spawn", lambda: spawned.append(real()) or spawned[0])
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(client.TrialsBroken, match="new thread"):
        client.TrialProcess(VOCABULARY)
    assert spawned[0].returncode == -signal.SIGKILL
    assert spawned[0].stdin.closed


def spy(written, real):
    def send(descriptor, *rest):
        written.append(descriptor)
        real(descriptor, *rest)

    return send


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
    while state(pid) != "Z":
        time.sleep(0.005)


@pytest.mark.parametrize(("processors", "started"), [(4, True), (2, False)])
def test_it_gets_ready_beside_the_library_where_there_are_processors_for_both(
    quick, monkeypatch, processors, started
):
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    before, real = [], quick._loaded
    monkeypatch.setattr(
        quick, "_loaded", lambda *param: before.append(quick._trials.pid) or real(*param)
    )
    quick.load()
    assert (before[0] is not None) == started
    assert quick._trials.pid is not None
