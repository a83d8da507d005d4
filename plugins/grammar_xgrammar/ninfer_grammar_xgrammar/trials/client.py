"""The engine's side of trials."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Literal, Protocol

from ninfer_core.contract.grammar import GrammarVocabulary
from ninfer_grammar_xgrammar import pace
from ninfer_grammar_xgrammar.trials import wire
from ninfer_grammar_xgrammar.trials.endings import ending

MODULE = "ninfer_grammar_xgrammar.trials.process"
START_SECONDS = 60.0
"""For the process to import the library; ordinarily it takes two."""
ANSWER_SECONDS = 5.0
"""Beyond those of a trial, after which the process is taken for dead."""
END_SECONDS = 2.0

Outcome = Literal["done", "slow", "raised", "long", "large", "died", "ended", "lost"]


class TrialsBroken(Exception):
    """There is no process. ``str`` says what it did."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``done`` within ``seconds``, its masks too; ``slow`` masks; the library ``raised``;
    it took too ``long``, is too ``large``, or ``died``; it was ``ended`` by who asked; the whole
    process was ``lost``. ``work``: processor seconds of it within ``elapsed`` ones; ``why``: how a
    process ended, or what was raised."""

    outcome: Outcome
    work: float = 0.0
    elapsed: float = 0.0
    seconds: float = 0.0
    why: str = ""


class Trial(Protocol):
    """One that was begun."""

    def verdict(self) -> Verdict:
        """Waits for it: no longer than the trial may take, and a few seconds."""
        ...

    def end(self) -> None:
        """Nobody waits for it any more."""
        ...


class Tries(Protocol):
    """What compiles need of trials. Thread safe."""

    def start(self) -> None:
        """Have the process started, in the background."""
        ...

    def ready(self) -> None:
        """Wait for it. Raises TrialsBroken."""
        ...

    def begin(self, ebnf: str, seconds: float) -> Trial:
        """Raises TrialsBroken."""
        ...

    def close(self) -> None: ...


class Trials:
    """See :class:`Tries`. One process, started again where it has ended; it ends with this object,
    and with this process."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._process: TrialProcess | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        with contextlib.suppress(TrialsBroken):  # whoever waits for it hears of it
            self._running()

    def ready(self) -> None:
        self._running().wait_ready()

    def begin(self, ebnf: str, seconds: float) -> TrialCall:
        process = self._running()
        process.wait_ready()
        return process.begin(ebnf, seconds)

    def close(self) -> None:
        """Idempotent; trials that run are lost."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
        if process is not None:
            process.close()

    def _running(self) -> TrialProcess:
        with self._lock:
            if self._closed:
                raise TrialsBroken("was closed")
            if self._process is None or self._process.ended:
                self._process = process = TrialProcess(self._vocabulary)
                weakref.finalize(self, process.close)
            return self._process


class TrialCall:
    """See :class:`Trial`."""

    def __init__(self, process: TrialProcess, number: int, seconds: float) -> None:
        self._process, self._number, self._seconds = process, number, seconds
        self.future: Future[Verdict] = Future()

    def verdict(self) -> Verdict:
        try:
            return self.future.result(self._seconds + ANSWER_SECONDS)
        except FutureTimeout:
            self._process.kill()
            return Verdict("lost", why="did not answer")

    def end(self) -> None:
        self._process.send({"end": self._number})


class TrialProcess:
    """A process, and the thread that hears it. Nothing here refers to :class:`Trials`."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        """Raises TrialsBroken."""
        self._lock = threading.RLock()  # a collected Trials may close it amid anything
        self._numbers = itertools.count()
        self._calls: dict[int, TrialCall] = {}
        self._ready: Future[None] = Future()
        self.ended = False
        self._popen = _spawn()
        inbox = self._inbox()
        self._thread = threading.Thread(
            target=self._hear,
            args=(vocabulary, inbox),
            name="ninfer-grammar-trials",
            daemon=True,
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # no thread is left
            os.close(inbox)
            with self._popen:
                self._popen.kill()
            raise TrialsBroken(f"cannot be heard: {error}") from error

    @property
    def pid(self) -> int:
        return self._popen.pid

    def wait_ready(self) -> None:
        """Raises TrialsBroken."""
        try:
            self._ready.result(START_SECONDS)
        except FutureTimeout:
            raise TrialsBroken(f"was not ready within {START_SECONDS:g} seconds") from None

    def begin(self, ebnf: str, seconds: float) -> TrialCall:
        with self._lock:
            call = TrialCall(self, next(self._numbers), seconds)
            lost = self.ended
            if not lost:
                self._calls[call._number] = call
        message = {
            "number": call._number,
            "seconds": seconds,
            "mask_seconds": pace.MASK_SECONDS,
        }
        if lost:
            call.future.set_result(Verdict("lost", why="ended"))
        else:
            self.send(message, ebnf.encode("utf-8", "surrogatepass"))
        return call

    def send(self, message: wire.Message, data: bytes = b"") -> None:
        """To a process that has ended it goes nowhere: its end says all."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            descriptor = self._inbox()
            try:
                wire.send(descriptor, message, data)
            finally:
                os.close(descriptor)

    def _inbox(self) -> int:
        """Of the caller alone: :meth:`close` may come amid a message, on this thread too, and the
        number that it frees may be another file's at once."""
        assert self._popen.stdin is not None
        return os.dup(self._popen.stdin.fileno())

    def kill(self) -> None:
        self.ended = True
        with contextlib.suppress(OSError):
            self._popen.kill()

    def close(self) -> None:
        """With its input it ends its trials, then itself; before it is ready it has none."""
        if not (self._ready.done() and self._ready.exception() is None):
            self.kill()
        assert self._popen.stdin is not None
        if not self._lock.acquire(timeout=END_SECONDS):
            self.kill()  # it hangs, amid a message to it, which goes nowhere then
            self._lock.acquire()
        try:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()
        finally:
            self._lock.release()
        self._end()
        if threading.current_thread() is not self._thread:
            self._thread.join(END_SECONDS)

    def _end(self) -> None:
        try:
            self._popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            self._popen.wait()

    def _hear(self, vocabulary: GrammarVocabulary, inbox: int) -> None:
        """On a thread of its own, until the process ends. Closes ``inbox``."""
        assert self._popen.stdout is not None
        failed = ""
        with contextlib.suppress(OSError, ValueError):
            wire.send_vocabulary(inbox, vocabulary)
        os.close(inbox)
        del vocabulary
        with self._popen.stdout as stdout, contextlib.suppress(OSError, ValueError):
            while (found := wire.receive(stdout.fileno())) is not None:
                message = found[0]
                if "ready" in message:
                    self._ready.set_result(None)
                elif "failed" in message:
                    failed = message["failed"]
                else:
                    self._land(message)
        self._lose(failed)

    def _land(self, message: wire.Message) -> None:
        with self._lock:
            call = self._calls.pop(message.pop("number"))
        call.future.set_result(Verdict(**message))

    def _lose(self, failed: str) -> None:
        self._end()
        why = f"does not load xgrammar: {failed}" if failed else ending(self._popen.returncode)
        with self._lock:
            self.ended = True
            calls = [*self._calls.values()]
            self._calls.clear()
        for call in calls:
            call.future.set_result(Verdict("lost", why=why))
        if not self._ready.done():
            self._ready.set_exception(TrialsBroken(why))


def _spawn() -> subprocess.Popen[bytes]:
    """Spawned, so that it inherits no lock, thread or device; with one thread and no device, so
    that it can fork; in a process group of its own, so that Ctrl-C does not reach it."""
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join(filter(None, sys.path))
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=os.environ | alone | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
            process_group=0,
        )
    except OSError as error:
        raise TrialsBroken(f"does not start: {error}") from error
