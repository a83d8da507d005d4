"""The engine's process when the one that serves goes away while it is ending itself."""

from __future__ import annotations

import socket
import threading

from ninfer_core.engine.remote import child


def test_an_interpreter_that_ends_needs_no_watchdog(monkeypatch) -> None:
    """As from Python 3.12 on, where no thread starts any more by then."""

    def refused(timer: threading.Timer) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    here, there = socket.socketpair()
    made = child.Child(here)
    made._ended.set()
    released = []
    made._handles[7] = type("Handle", (), {"close": lambda self: released.append(7)})()
    monkeypatch.setattr(threading.Timer, "start", refused)
    made._left_alone()
    assert released == [7]
    there.close()
    here.close()
