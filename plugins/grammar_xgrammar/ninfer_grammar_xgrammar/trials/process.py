"""The process beside the engine: ``python -m ninfer_grammar_xgrammar.trials.process``.

Standard input brings the vocabulary and then trials, standard output takes their verdicts. It has
one thread and never touches a device, so that it can fork. It ends with its standard input, thus
with the engine's process, however that ends.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from ninfer_grammar_xgrammar.trials import job, wire
from ninfer_grammar_xgrammar.trials.endings import ending


@dataclass(slots=True)
class Job:
    """A trial that runs. ``ended``: why it was killed."""

    number: int
    pid: int
    began: float
    seconds: float
    descriptor: int
    said: bytes = b""
    ended: str = ""

    @property
    def deadline(self) -> float:
        return self.began + self.seconds

    def kill(self, why: str) -> None:
        if not self.ended:
            self.ended = why
            os.kill(self.pid, signal.SIGKILL)

    def verdict(self) -> wire.Message | None:
        """What it said, once that is all there: its end, which takes a while, is not waited for."""
        if not self.said.endswith(b"\n"):
            return None
        found: wire.Message = json.loads(self.said)
        return found | {"number": self.number, "elapsed": time.monotonic() - self.began}

    def death(self) -> wire.Message:
        """Waits for the end of the process, which holds nothing open any more. It is the verdict of
        one that said nothing."""
        _, status, used = os.wait4(self.pid, 0)
        os.close(self.descriptor)
        return {
            "number": self.number,
            "outcome": self.ended or "died",
            "work": used.ru_utime + used.ru_stime,
            "elapsed": time.monotonic() - self.began,
            "why": ending(os.waitstatus_to_exitcode(status)),
        }


class Jobs:
    """The trials that run, and the connection to the engine."""

    def __init__(self, library: job.Compiles, inbox: int, outbox: int) -> None:
        self._library = library
        self._inbox, self._outbox = inbox, outbox
        self._jobs: dict[int, Job] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(inbox, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until the engine is gone; no job is left then."""
        try:
            while True:
                for key, _ in self._selector.select(self._patience()):
                    if key.data is not None:
                        self._hear(key.data)
                    elif not self._obey():
                        return
                self._kill_overdue()
        except BrokenPipeError:
            return
        finally:
            for one in self._jobs.values():
                one.kill("closed")
                os.waitpid(one.pid, 0)

    def _patience(self) -> float | None:
        left = [one.deadline for one in self._jobs.values() if not one.ended]
        return max(0.0, min(left) - time.monotonic()) if left else None

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for one in self._jobs.values():
            if now >= one.deadline:
                one.kill("long")

    def _obey(self) -> bool:
        """One message of the engine; False once it is gone."""
        found = wire.receive(self._inbox)
        if found is None:
            return False
        message, data = found
        if "end" in message:
            if message["end"] in self._jobs:
                self._jobs[message["end"]].kill("ended")
        else:
            self._begin(message, data.decode("utf-8", "surrogatepass"))
        return True

    def _begin(self, message: wire.Message, ebnf: str) -> None:
        number, began = message["number"], time.monotonic()
        parent = os.getpid()
        ends: tuple[int, ...] = ()
        try:
            ends = ours, theirs = os.pipe()
            pid = os.fork()
        except OSError as error:  # no process or descriptor is left; later ones may go well
            for end in ends:
                os.close(end)
            why = f"does not fork: {error}"
            wire.send(self._outbox, {"number": number, "outcome": "lost", "why": why})
            return
        if pid == 0:
            self._become(ebnf, message["mask_seconds"], theirs, parent)
        os.close(theirs)
        one = self._jobs[number] = Job(number, pid, began, message["seconds"], ours)
        self._selector.register(ours, selectors.EVENT_READ, one)

    def _become(self, ebnf: str, mask_seconds: float, descriptor: int, parent: int) -> NoReturn:
        """In the forked process, which holds nothing of the connection but its own pipe."""
        try:
            for other in (self._inbox, self._outbox, *(o.descriptor for o in self._jobs.values())):
                os.close(other)
            job.run(self._library, ebnf, mask_seconds, descriptor, parent)
        finally:
            os._exit(1)

    def _hear(self, one: Job) -> None:
        said = os.read(one.descriptor, 1 << 16)
        one.said += said
        verdict = one.verdict()
        if not said:
            self._selector.unregister(one.descriptor)
            del self._jobs[one.number]
            death = one.death()
            if verdict is None:
                wire.send(self._outbox, death)
        elif verdict is not None:
            wire.send(self._outbox, verdict)


def main() -> None:
    """See the module."""
    inbox, outbox = os.dup(0), os.dup(1)
    quiet = os.open(os.devnull, os.O_RDONLY)
    os.dup2(quiet, 0)
    os.dup2(2, 1)  # whatever libraries print
    vocabulary = wire.receive_vocabulary(inbox)
    if vocabulary is None:
        return
    library: Any
    with contextlib.suppress(BrokenPipeError):
        try:
            from ninfer_grammar_xgrammar.library import Library

            library = Library(vocabulary)
        except Exception as error:  # whatever a broken installation raises
            wire.send(outbox, {"failed": f"{type(error).__name__}: {error}"})
            return
        gc.collect()
        gc.freeze()  # jobs share these pages
        wire.send(outbox, {"ready": True})
        Jobs(library, inbox, outbox).serve()
    os._exit(0)  # libraries take a while to be taken apart


if __name__ == "__main__":
    main()
