"""Grammars are compiled before their request gets a ticket."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout

from ninfer_core.contract.frontend import CompiledGrammar, Frontend, GrammarSource
from ninfer_core.contract.requests import PromptInput
from ninfer_core.engine.lifecycle import bounded

COLD_COMPILES = 2
_KEPT_GRAMMARS = 32
_KEPT_BYTES = 64 << 20


class GrammarIngress:
    """Compiles on threads of its own, at most :data:`COLD_COMPILES` at once, each source once.

    Equal sources that arrive together share one compile. A few recent results are kept so that
    a warm request does not queue behind a cold one; the real cache is the Frontend's.
    """

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._lock = threading.Lock()
        self._flights: OrderedDict[bytes, Future[CompiledGrammar]] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None

    def compile(self, source: GrammarSource, timeout: float | None) -> CompiledGrammar:
        """Raises what ``Frontend.compile`` raises, or TimeoutError after ``timeout`` seconds; the
        compile then goes on for whoever asks next."""
        flight = self._flight(source)
        try:
            return flight.result(bounded(timeout))
        except FutureTimeout:
            raise TimeoutError from None

    def close(self) -> None:
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    def _flight(self, source: GrammarSource) -> Future[CompiledGrammar]:
        with self._lock:
            flight = self._flights.get(source.key)
            if flight is None or _failed(flight):
                flight = self._start(source)
            self._flights[source.key] = flight
            self._flights.move_to_end(source.key)
            self._trim()
            return flight

    def _start(self, source: GrammarSource) -> Future[CompiledGrammar]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(COLD_COMPILES, thread_name_prefix="ninfer-grammar")
        return self._pool.submit(self._frontend.compile, source)

    def _trim(self) -> None:
        """Forget the oldest settled compiles beyond the bounds; running ones stay."""
        held = sum(_bytes(flight) for flight in self._flights.values())
        for key in list(self._flights):
            if len(self._flights) <= _KEPT_GRAMMARS and held <= _KEPT_BYTES:
                return
            flight = self._flights[key]
            if flight.done():
                held -= _bytes(flight)
                del self._flights[key]


def demands_form(prompt: PromptInput) -> bool:
    """Whether the answer must have a form. Calls that are only offered go without, where no
    grammar backend works."""
    mode = prompt.tool_choice.mode
    strict = any((tool.get("function") or {}).get("strict") for tool in prompt.tools)
    return (
        prompt.response_format.kind != "text"
        or mode in ("required", "named")
        or (mode != "none" and strict)
    )


def _failed(flight: Future[CompiledGrammar]) -> bool:
    return flight.cancelled() or (flight.done() and flight.exception() is not None)


def _bytes(flight: Future[CompiledGrammar]) -> int:
    if not flight.done() or _failed(flight):
        return 0
    return flight.result().memory_bytes
