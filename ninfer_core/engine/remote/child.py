"""The engine's process: ``python -m ninfer_core.engine.remote.child FD``.

Lives as long as the connection on file descriptor FD. It ignores SIGINT and SIGTERM: what a signal
means is decided by the process that serves, which sends Close or goes away.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ninfer_core.engine.handle import RequestHandle
from ninfer_core.engine.remote.channel import Channel
from ninfer_core.engine.remote.messages import (
    Accepted,
    Answer,
    Call,
    Cancel,
    Close,
    Hello,
    Logged,
    Progress,
    Ready,
    Release,
    StartFailed,
    Submit,
)
from ninfer_core.engine.remote.outbox import Outbox, pack_round
from ninfer_core.engine.remote.served import ServedEngine
from ninfer_core.engine.remote.wire_errors import pack_error

ABANDONED: Final = 70
"""Exit code of a child that could not end in good order after it was left alone."""
GRACE_SECONDS: Final = 5.0
"""How long a child that was left alone may take to end."""
_FLUSH_SECONDS: Final = 5.0


class Child:
    """Opens one engine and does what the messages say."""

    def __init__(self, sock: socket.socket) -> None:
        self._channel = Channel(sock, self._receive, self._left_alone, pack_round)
        self._outbox = Outbox(self._channel)
        self._hello: queue.SimpleQueue[Hello] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._engine: ServedEngine | None = None
        self._lock = threading.Lock()
        self._handles: dict[int, RequestHandle] = {}
        self._let_go: set[int] = set()

    def run(self) -> int:
        """Serve until the end; returns the exit code."""
        self._channel.start()
        try:
            self._engine = engine = self._open(self._hello.get())
        except BaseException as error:
            self._ended.set()
            self._channel.send(StartFailed(pack_error(error)))
            self._channel.finish(_FLUSH_SECONDS)
            return 1
        self._channel.send(Ready(engine.load_summary()))
        self._ended.wait()
        try:
            engine.close()
        finally:
            self._channel.finish(_FLUSH_SECONDS)
        return 0

    def _open(self, hello: Hello) -> ServedEngine:
        sys.path[:] = hello.path
        _log_through(self._channel, hello.log_level)
        from ninfer_core.plugins import load_plugins
        from ninfer_core.plugins.objects import load_object

        self._progress("loading plug-ins")
        host = load_plugins(hello.selection, warn=lambda line: None)
        self._progress("loading the model")
        factory = load_object(hello.opener)(hello.source, hello.options, host)
        engine = ServedEngine(factory, hello.options, self._outbox, self._progress)
        # What is loaded by now stays: a full pass over it would hold a round up, again and again.
        gc.collect()
        gc.freeze()
        return engine

    def _progress(self, text: str) -> None:
        self._channel.send(Progress(text))

    def _receive(self, message: Any) -> None:
        """On the reading thread: nothing here may wait for the worker."""
        if isinstance(message, Submit):
            if message.prompt.grammar is None:
                self._submit(message)
            else:
                self._aside(lambda: self._submit(message))
        elif isinstance(message, Cancel):
            if handle := self._handles.get(message.number):
                handle.cancel()
        elif isinstance(message, Release):
            self._release(message.number)
        elif isinstance(message, Call):
            self._aside(lambda: self._call(message))
        elif isinstance(message, Close):
            self._ended.set()
        elif isinstance(message, Hello):
            self._hello.put(message)

    def _aside(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="ninfer-call", daemon=True).start()

    def _submit(self, message: Submit) -> None:
        assert self._engine is not None
        number = message.number
        try:
            handle = self._engine.submit_as(number, message.prompt, message.options, message.spent)
        except Exception as error:
            self._channel.send(Answer(number, error=pack_error(error)))
            return
        with self._lock:
            self._handles[number] = handle
            too_late = number in self._let_go
        if too_late:
            self._release(number)
        self._channel.send(Answer(number, Accepted(handle.request_id, handle.notes)))

    def _release(self, number: int) -> None:
        """Of a request whose grammar still compiles, it is remembered."""
        with self._lock:
            handle = self._handles.pop(number, None)
            if handle is None:
                self._let_go.add(number)
                return
            self._let_go.discard(number)
        handle.close()

    def _call(self, message: Call) -> None:
        try:
            value = getattr(self._engine, message.method)(*message.arguments)
            answer = Answer(message.number, value)
        except Exception as error:
            answer = Answer(message.number, error=pack_error(error))
        self._channel.send(answer)

    def _left_alone(self) -> None:
        """The connection is gone: nobody waits for anything any more."""
        if self._engine is None and not self._ended.is_set():
            os._exit(ABANDONED)
        watchdog = threading.Timer(GRACE_SECONDS, os._exit, (ABANDONED,))
        watchdog.daemon = True
        # From Python 3.12 on no thread starts while the interpreter ends: it needs no watchdog.
        with suppress(RuntimeError):
            watchdog.start()
        for number in list(self._handles):
            self._release(number)
        self._ended.set()


class _Forwarding(logging.Handler):
    """Hands log records to the serving process, which knows where they go and in which form."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.send(Logged(record.name, record.levelno, self.format(record)))


def _log_through(channel: Channel, level: int) -> None:
    logger = logging.getLogger("ninfer")
    logger.handlers = [_Forwarding(channel)]
    logger.setLevel(level)
    logger.propagate = False


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return Child(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    sys.exit(main())
