"""Following one request from the terminal."""

from __future__ import annotations

import time
from typing import Final, Protocol

from ninfer_core.console import Interrupt
from ninfer_core.contract.engine import GenerationHandle
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.events import (
    Delta,
    Failed,
    Finished,
    GenerationEvent,
    GenerationResult,
    GenerationStart,
)

_POLL: Final = 0.05
PATIENCE: Final = 0.6


class Sink(Protocol):
    """Where an answer goes."""

    def start(self, start: GenerationStart) -> None: ...

    def delta(self, delta: Delta) -> None: ...


def follow(handle: GenerationHandle, sink: Sink, interrupt: Interrupt) -> GenerationResult | None:
    """Feed ``sink`` until the request ends, and return its result.

    After Ctrl-C the request is cancelled; None when the engine has not let go of it within
    ``PATIENCE`` seconds. Raises the request's error, or EngineFailure.
    """
    deadline: float | None = None
    while True:
        if interrupt.requested and deadline is None:
            handle.cancel()
            deadline = time.monotonic() + PATIENCE
        try:
            event = handle.next_event(timeout=_POLL)
        except TimeoutError:
            if deadline is not None and time.monotonic() > deadline:
                return None
            continue
        result = _take(event, sink)
        if result is not None:
            return result


def _take(event: GenerationEvent | None, sink: Sink) -> GenerationResult | None:
    match event:
        case Finished(result):
            return result
        case Failed(error):
            raise error
        case GenerationStart():
            sink.start(event)
        case Delta():
            sink.delta(event)
        case None:
            raise EngineFailure("a request ended without a result")
    return None
