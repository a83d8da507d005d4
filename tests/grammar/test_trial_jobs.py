"""Trials as the process for them makes them: how each ends, and that none is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ninfer_core.contract.grammar import GrammarVocabulary
from ninfer_grammar_xgrammar.trials import wire
from ninfer_grammar_xgrammar.trials.process import Jobs
from tests.grammar._trials_served import Library

VOCABULARY = GrammarVocabulary(token_bytes=[b"a", b"", b"bc"], ends=frozenset({1}))
SERVED = Path(__file__).with_name("_trials_served.py")


class Served:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(SERVED)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        wire.send_vocabulary(self.process.stdin.fileno(), VOCABULARY)
        assert wire.receive(self.process.stdout.fileno()) == ({"ready": True}, b"")

    def begin(self, number, ebnf, seconds=60.0, mask_seconds=1.0):
        told = {"number": number, "seconds": seconds, "mask_seconds": mask_seconds}
        self.send(told, ebnf.encode())

    def send(self, message, data=b""):
        wire.send(self.process.stdin.fileno(), message, data)

    def verdict(self):
        return wire.receive(self.process.stdout.fileno())[0]

    def jobs(self, count):
        """The jobs, once there are ``count``."""
        while len(found := children(self.process.pid)) != count:
            time.sleep(0.005)
        return found


@pytest.fixture
def served():
    one = Served()
    yield one
    one.process.stdin.close()
    assert one.process.wait(30) == 0
    one.process.stdout.close()


def children(pid):
    return [int(it) for it in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    ("ebnf", "told", "outcome", "why"),
    [
        ("root", {}, "done", None),
        ("root", {"mask_seconds": -1.0}, "slow", None),
        ("nonsense", {}, "raised", "ValueError: no grammar"),
        ("memory", {}, "large", None),
        ("no room", {}, "large", None),
        ("crash", {}, "died", "was killed by SIGSEGV"),
        ("forever", {"seconds": 0.05}, "long", "was killed by SIGKILL"),
    ],
)
def test_how_a_trial_ends(served, ebnf, told, outcome, why):
    served.begin(7, ebnf, **told)
    verdict = served.verdict()
    assert (verdict["number"], verdict["outcome"], verdict.get("why")) == (7, outcome, why)
    assert verdict["work"] < 5
    served.begin(8, "root")
    assert served.verdict()["outcome"] == "done"
    served.jobs(0)


def test_what_is_raised_late_says_how_late(served):
    served.begin(1, "late")
    assert served.verdict()["seconds"] >= 0.1


def test_a_fork_that_fails_loses_that_trial_alone(monkeypatch):
    def fork():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    (inbox, asks), (answers, outbox) = os.pipe(), os.pipe()
    serving = Jobs(Library(), inbox, outbox)
    wire.send(asks, {"number": 5, "seconds": 1.0, "mask_seconds": 1.0}, b"root")
    assert serving._obey()
    verdict = wire.receive(answers)[0]
    assert (verdict["number"], verdict["outcome"]) == (5, "lost")
    assert "does not fork" in verdict["why"]
    assert not serving._jobs
    serving._selector.close()
    for descriptor in (inbox, asks, answers, outbox):
        os.close(descriptor)


def test_a_vocabulary_arrives_as_it_is():
    ours, theirs = os.pipe()
    wire.send_vocabulary(theirs, VOCABULARY)
    arrived = wire.receive_vocabulary(ours)
    os.close(theirs)
    assert (arrived.token_bytes, arrived.ends) == ([b"a", b"", b"bc"], {1})
    assert wire.receive_vocabulary(ours) is None
    os.close(ours)


def test_work_is_told_apart_from_waiting(served):
    served.begin(1, "work", seconds=0.5)
    worked = served.verdict()
    served.begin(2, "forever", seconds=0.5)
    waited = served.verdict()
    assert waited["work"] < worked["work"] <= worked["elapsed"] + 0.05
    assert min(worked["elapsed"], waited["elapsed"]) >= 0.5


def test_others_go_on_meanwhile_and_one_that_nobody_wants_ends(served):
    served.begin(1, "forever")
    served.begin(2, "forever")
    served.begin(3, "root")
    assert served.verdict()["number"] == 3
    served.jobs(2)
    served.send({"end": 2})
    ended = served.verdict()
    assert (ended["number"], ended["outcome"]) == (2, "ended")
    served.send({"end": 2})  # it has ended already
    served.begin(4, "root")
    assert served.verdict()["number"] == 4
    served.jobs(1)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_no_job_outlives_it(how):
    one = Served()
    one.begin(1, "forever")
    one.begin(2, "work")
    jobs = one.jobs(2)
    if how == "closed":
        one.process.stdin.close()
    else:
        one.process.kill()
    assert one.process.wait(30) == (0 if how == "closed" else -9)
    for pid in jobs:
        while state(pid) != "Z":
            time.sleep(0.005)


def state(pid):
    """``Z`` too where nothing is left."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
