"""The child process: how it is started, and how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import Final

MODULE: Final = "ninfer_core.engine.remote.child"


class ChildProcess:
    """One engine process and this side's end of the connection to it.

    It is spawned, never forked, so that it inherits no lock, thread or device of this process; it
    has a process group of its own, so that Ctrl-C does not reach it. Its standard output goes to
    standard error.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            descriptor = theirs.fileno()
            # -P: the working directory is no place to import from.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(descriptor)],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(descriptor,),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                process_group=0,
            )
            undo.pop_all()
        self.sock = ours

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout: float) -> bool:
        """Whether it has ended within ``timeout`` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for its end, then kill it."""
        if not self.wait(timeout):
            self._process.kill()
            self._process.wait()

    def describe_end(self) -> str:
        """``exited with code 3`` or ``was killed by signal 9 (SIGKILL)``."""
        code = self._process.returncode
        if code is None:
            return "closed its connection"
        if code >= 0:
            return f"exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "unknown"
        return f"was killed by signal {-code} ({name})"
