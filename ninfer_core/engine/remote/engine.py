"""The public engine, in a process of its own."""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ninfer_core.contract.engine import (
    Availability,
    AvailabilityState,
    EngineOptions,
    EngineStats,
    LoadSummary,
    MemorySummary,
)
from ninfer_core.contract.errors import Unavailable
from ninfer_core.contract.frontend import Frontend, PreparedPrompt
from ninfer_core.contract.instance import Purpose
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.engine.checks import check_request, no_generation
from ninfer_core.engine.ingress import needs_no_model
from ninfer_core.engine.outstanding import OutstandingGate
from ninfer_core.engine.remote.handle import RemoteHandle
from ninfer_core.engine.remote.link import Link
from ninfer_core.engine.remote.messages import Hello, Submit
from ninfer_core.engine.remote.plan import RemotePlan, TextSide
from ninfer_core.engine.response import Response
from ninfer_core.engine.round_timings import RoundTiming
from ninfer_core.engine.start_options import check_options
from ninfer_core.engine.text_calls import TextCalls

if TYPE_CHECKING:
    from ninfer_core.plugins import PluginHost

_STATS_SECONDS = 2.0


class RemoteEngine(TextCalls):
    """One model in another process, and the text side of it here.

    Thread safe; implements ``contract.engine.EngineLike`` with the meaning that it has in process:
    prompts are rendered, tokenised and checked here, everything else happens there. The process
    ends with this object, with the process that holds it, or with :meth:`close`.
    """

    def __init__(
        self,
        plan: RemotePlan,
        options: EngineOptions | None = None,
        *,
        progress: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the process and wait for its engine. Raises what opening it raises there.

        ``progress`` hears what it does meanwhile, on another thread.
        """
        self._options = options = options or EngineOptions()
        check_options(options)
        self._clock = clock
        self._gate = OutstandingGate(options.max_concurrency + options.max_pending)
        self._stats = EngineStats()
        started = clock()
        progress("starting the engine's process")
        self._link = Link(_hello(plan, options), progress)
        try:
            self._text = plan.text_side()
            summary = self._link.wait_ready()
        except BaseException:
            self._link.kill()
            raise
        self._summary = replace(summary, seconds=clock() - started)
        self._finalizer = weakref.finalize(self, _close, self._link, self._text)

    @classmethod
    def open(
        cls,
        source: str | Path,
        options: EngineOptions | None = None,
        *,
        host: PluginHost | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> RemoteEngine:
        """As ``Engine.open``, in a process of its own, which loads the plug-ins of ``host`` in
        their versions. Raises NinferError with one line that names the cause and the mend."""
        from ninfer_core.text_side import remote_plan

        options = options or EngineOptions()
        check_options(options)
        return cls(remote_plan(source, options, host), options, progress=progress)

    @property
    def pid(self) -> int:
        """The process that runs the engine."""
        return self._link.process.pid

    def submit(
        self, prompt: PromptInput | PreparedPrompt, options: GenerationOptions | None = None
    ) -> RemoteHandle:
        """Queue a request. Raises Overloaded, Unavailable and whatever ``prepare`` raises."""
        started = self._clock()
        options = options or GenerationOptions()
        check_request(prompt, options)
        if self._options.purpose is not Purpose.GENERATION:
            raise no_generation()
        if not self._link.availability.ready:
            raise self._link.unavailable()
        if needs_no_model(options):
            return self._post(prompt, options, started, lambda: None)
        self._link.settle_dropped()
        self._gate.take()
        try:
            return self._post(prompt, options, started, self._gate.give_back)
        except BaseException:
            self._gate.give_back()
            raise

    def score(self, token_ids: Sequence[int], first_target: int = 1) -> list[float]:
        """Log-probabilities of ``token_ids[first_target:]``, each given all tokens before it."""
        scores: list[float] = self._link.call("score", list(token_ids), first_target)
        return scores

    def availability(self) -> Availability:
        return self._link.availability

    def load_summary(self) -> LoadSummary:
        return self._summary

    def memory_summary(self) -> MemorySummary:
        """Asks the worker, so it may take as long as the unit that runs. Raises Unavailable."""
        summary: MemorySummary = self._link.call("memory_summary")
        return summary

    def stats(self) -> EngineStats:
        """Of an engine whose process is gone or does not answer, the last that was seen."""
        try:
            self._stats = self._link.call("stats", timeout=_STATS_SECONDS)
        except (Unavailable, TimeoutError):
            if self.availability().state in (AvailabilityState.CLOSED, AvailabilityState.FAILED):
                self._stats = replace(self._stats, running=0, waiting=0, paused=0, outstanding=0)
        return self._stats

    def round_timings(self) -> tuple[RoundTiming, ...]:
        """Host time of the latest decode rounds, oldest first. Raises Unavailable."""
        timings: tuple[RoundTiming, ...] = self._link.call("round_timings")
        return timings

    def drain(self, deadline: float | None = None) -> bool:
        """Refuse new work and wait up to ``deadline`` seconds; True when nothing is left."""
        self._link.drain()
        try:
            quiet: bool = self._link.call("drain", deadline)
        except Unavailable:
            return True
        return quiet

    def close(self) -> None:
        """End every request that still runs, then the engine and its process. Idempotent."""
        self._finalizer()

    def _post(
        self,
        prompt: PromptInput | PreparedPrompt,
        options: GenerationOptions,
        started: float,
        give_back: Callable[[], None],
    ) -> RemoteHandle:
        prepared = prompt if isinstance(prompt, PreparedPrompt) else self.prepare(prompt)
        number = self._link.number()
        response = Response(partial(_settle, self._link, number, give_back))
        spent = self._clock() - started
        accepted = self._link.submit(Submit(number, prepared, options, spent), response)
        return RemoteHandle(self._link, number, response, accepted, prepared.length)

    def _frontend(self) -> Frontend:
        if self.availability().state in (AvailabilityState.CLOSED, AvailabilityState.FAILED):
            raise self._link.unavailable()
        return self._text.frontend


def _hello(plan: RemotePlan, options: EngineOptions) -> Hello:
    return Hello(
        opener=plan.opener,
        source=plan.source,
        options=options,
        selection=plan.selection,
        path=tuple(sys.path),
        log_level=logging.getLogger("ninfer").getEffectiveLevel(),
    )


def _settle(link: Link, number: int, give_back: Callable[[], None]) -> None:
    """The request has ended and was let go. The child hears it first, so that it never counts one
    more request than are counted here."""
    link.release(number)
    give_back()


def _close(link: Link, text: TextSide) -> None:
    try:
        link.close()
    finally:
        text.close()
