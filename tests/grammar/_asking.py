"""Asking a backend for parts, from threads."""

from __future__ import annotations

import random
import threading
import time

from ninfer_core.contract.grammar import GrammarVocabulary
from tests.grammar.conftest import END, WHOLE, source
from tests.grammar.test_trial_jobs import children

WORDS = [bytes(random.Random(i).choices(b"abcdefgh", k=2 + i % 7)) for i in range(1000)]
VOCABULARY = GrammarVocabulary(
    token_bytes=[*(bytes([value]) for value in range(256)), b"", *WORDS], ends=frozenset({END})
)


def regex(pattern):
    return {"kind": "regex", "pattern": pattern, "param": "it"}


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
