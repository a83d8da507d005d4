"""One trial: a forked process that compiles a grammar, walks in it, and says how that went."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from typing import Any, NoReturn, Protocol

from ninfer_grammar_xgrammar.pace import TooSlow

MEMORY_BYTES = 4 << 30
"""Of address space beyond what the process had when it was forked. Each thread of the library takes
an eighth of a GiB of it for nothing."""
WORK_SECONDS = 60
"""Of processor time, of all threads: for a job whose parent was killed before it."""
_PR_SET_PDEATHSIG = 1
_NO_ROOM = ("bad_alloc", "length_error", "Resource temporarily unavailable")
"""In the text of a RuntimeError by which the library tells of memory, or a thread, that it did not
get."""


class Compiles(Protocol):
    """What a job needs of :class:`ninfer_grammar_xgrammar.library.Library`."""

    def compile(self, ebnf: str) -> Any: ...

    def probe(self, compiled: Any, seconds: float) -> None: ...


def run(
    library: Compiles, ebnf: str, mask_seconds: float, descriptor: int, parent: int
) -> NoReturn:
    """Within the process that ``parent`` forked, which this ends. Writes a line of
    JSON to ``descriptor``."""
    try:
        _end_with(parent)
        _bound()
        found = _tried(library, ebnf, mask_seconds) | {"work": time.process_time()}
        os.write(descriptor, json.dumps(found).encode() + b"\n")
    finally:
        os._exit(0)


def _tried(library: Compiles, ebnf: str, mask_seconds: float) -> dict[str, Any]:
    started = time.monotonic()
    try:
        compiled = library.compile(ebnf)
        seconds = time.monotonic() - started
        library.probe(compiled, mask_seconds)
    except TooSlow:
        return {"outcome": "slow"}
    except MemoryError:
        return {"outcome": "large"}
    except Exception as error:
        if isinstance(error, RuntimeError) and any(it in str(error) for it in _NO_ROOM):
            return {"outcome": "large"}
        why = f"{type(error).__name__}: {error}"[:1000]
        return {"outcome": "raised", "why": why, "seconds": time.monotonic() - started}
    return {"outcome": "done", "seconds": seconds}


def _end_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)


def _bound() -> None:
    """A crash leaves no file and says nothing to the engine's log: how it ended is reported."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (WORK_SECONDS, WORK_SECONDS))
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
        most = held + MEMORY_BYTES
        with contextlib.suppress(ValueError):  # a lower bound was set from outside
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
