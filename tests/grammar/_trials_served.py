"""A process for trials whose library does what the source says; it loads in no time."""

import os
import signal
import time

from ninfer_grammar_xgrammar.pace import TooSlow
from ninfer_grammar_xgrammar.trials import wire
from ninfer_grammar_xgrammar.trials.process import Jobs


class Library:
    def compile(self, ebnf):
        if ebnf == "forever":
            time.sleep(600)
        elif ebnf == "work":
            while True:
                pass
        elif ebnf == "memory":
            bytearray(1 << 42)
        elif ebnf == "no room":
            raise RuntimeError("std::bad_alloc")
        elif ebnf == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif ebnf == "late":
            time.sleep(0.1)
            raise ValueError("no grammar")
        elif ebnf == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif ebnf == "nonsense":
            raise ValueError("no grammar")
        return ebnf

    def probe(self, compiled, mask_seconds):
        if mask_seconds < 0:
            raise TooSlow


if __name__ == "__main__":
    ours = os.dup(0), os.dup(1)
    wire.receive_vocabulary(ours[0])
    wire.send(ours[1], {"ready": True})
    Jobs(Library(), *ours).serve()
