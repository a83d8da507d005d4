"""The public engine, in process."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ninfer_core.contract.engine import (
    Availability,
    AvailabilityState,
    EngineOptions,
    EngineStats,
    LoadSummary,
    MemorySummary,
)
from ninfer_core.contract.errors import Unsupported
from ninfer_core.contract.frontend import Frontend, PreparedPrompt
from ninfer_core.contract.instance import Purpose
from ninfer_core.contract.program import Program, ScoringProgram
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.engine.checks import adapted, check_request, no_generation
from ninfer_core.engine.core import EngineCore
from ninfer_core.engine.draft_check import judge_drafts, try_drafts
from ninfer_core.engine.grammar_start import GrammarStart
from ninfer_core.engine.handle import RequestHandle
from ninfer_core.engine.ingress import Ingress
from ninfer_core.engine.lifecycle import Lifecycle
from ninfer_core.engine.max_gap import keep_gap
from ninfer_core.engine.opened import InstanceFactory, OpenedInstance
from ninfer_core.engine.outstanding import OutstandingGate
from ninfer_core.engine.round_timings import RoundTiming
from ninfer_core.engine.scoring import ScoringCore
from ninfer_core.engine.start_options import check_options
from ninfer_core.engine.text_calls import TextCalls
from ninfer_core.engine.warm_up import WarmUpSizes, start_afresh, warm_up
from ninfer_core.engine.worker import EngineWorker, Runnable


class Engine(TextCalls):
    """One model, its worker thread, and everything a gateway may ask of them.

    Thread safe; implements ``contract.engine.EngineLike``. Use it as a context manager or call
    :meth:`close`; an engine that is dropped or still open at exit closes itself.
    """

    _loads_grammars = False
    """Whether a start loads the grammar backend where the options do not say."""

    def __init__(
        self,
        factory: InstanceFactory,
        options: EngineOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the worker and wait for the instance. Raises what building it raises."""
        self._options = options or EngineOptions()
        check_options(self._options)
        self._clock = clock
        self._lifecycle = self._new_lifecycle()
        self._gate = OutstandingGate(self._options.max_concurrency + self._options.max_pending)
        self._core: EngineCore | None = None
        self._scoring: ScoringCore | None = None
        started = clock()
        self._worker = EngineWorker(factory, self._make_core, self._lifecycle)
        self._opened = self._worker.start()
        self._finalizer = weakref.finalize(self, _close_worker, self._worker)
        self._ingress: Ingress | None = None
        self._draft_length: float | None = None
        try:
            grammars = self._start_grammars()
            warmed = self._warm_up()
            grammars.wait(self._stage)
            gap = self._keep_gap()
            memory = self.memory_summary()
            self._summary = replace(
                _summarise(self._opened, self._options, memory, gap, self._draft_length),
                seconds=clock() - started,
                warm_up_seconds=warmed,
            )
            self._ingress = self._open_ingress()
            self._lifecycle.ready()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        source: str | Path,
        options: EngineOptions | None = None,
        *,
        factory: InstanceFactory | None = None,
    ) -> Engine:
        """Open a ``.ninfer`` file, a Hugging Face directory or the name of a model source.

        Raises NinferError with one line that names the cause and the mend.
        """
        options = options or EngineOptions()
        check_options(options)
        if factory is None:
            from ninfer_core.instance import instance_factory

            factory = instance_factory(source, options)
        return cls(factory, options)

    def submit(
        self, prompt: PromptInput | PreparedPrompt, options: GenerationOptions | None = None
    ) -> RequestHandle:
        """Queue a request. Raises Overloaded, Unavailable and whatever ``prepare`` raises."""
        options = options or GenerationOptions()
        check_request(prompt, options)
        if isinstance(prompt, PromptInput):
            prompt = adapted(prompt, self._options)
        return self._require_ingress().submit(prompt, options)

    def score(self, token_ids: Sequence[int], first_target: int = 1) -> list[float]:
        """Log-probabilities of ``token_ids[first_target:]``, each given all tokens before it."""
        if self._scoring is None:
            raise Unsupported(
                "this engine was opened for generation and does not score",
                hint="open one with purpose CAUSAL_SCORING, or ask for prompt_logprobs",
            )
        return self._scoring.score(token_ids, first_target)

    def availability(self) -> Availability:
        return self._lifecycle.availability()

    def load_summary(self) -> LoadSummary:
        return self._summary

    def memory_summary(self) -> MemorySummary:
        """Asks the worker, so it may take as long as the unit that runs. Raises Unavailable."""
        return self._lifecycle.ask(self._memory)

    def stats(self) -> EngineStats:
        return self._core.stats() if self._core is not None else EngineStats()

    def round_timings(self) -> tuple[RoundTiming, ...]:
        """Host time of the latest decode rounds, oldest first; none of a scoring engine."""
        return self._core.round_timings() if self._core is not None else ()

    def drain(self, deadline: float | None = None) -> bool:
        """Refuse new work and wait up to ``deadline`` seconds; True when nothing is left."""
        self._lifecycle.drain()
        return self._lifecycle.wait_quiet(deadline)

    def close(self) -> None:
        """End every request that still runs, then the worker and its instance. Idempotent."""
        if self._finalizer.detach() is None:
            return
        if self._ingress is not None:
            self._ingress.close()
        _close_worker(self._worker)

    def _new_lifecycle(self) -> Lifecycle:
        return Lifecycle()

    def _start_grammars(self) -> GrammarStart:
        asked = self._options.load_grammars
        wanted = (self._loads_grammars if asked is None else asked) and self._core is not None
        load = self._opened.instance.frontend.grammar_loader() if wanted else None
        return GrammarStart(load, required=asked is True or self._opened.grammars_named)

    def _stage(self, text: str) -> None:
        """Hear what is done while the engine starts."""

    def _make_core(self, opened: OpenedInstance) -> Runnable:
        """Runs on the worker thread, before the opener goes on."""
        program = opened.instance.program
        if self._options.purpose is Purpose.CAUSAL_SCORING:
            scoring = cast(ScoringProgram, program)
            self._scoring = ScoringCore(scoring, opened.max_context, self._lifecycle)
            return self._scoring
        self._core = EngineCore(
            cast(Program, program), opened.cache_policy, self._lifecycle, self._gate, self._clock,
            opened.explain,
        )  # fmt: skip
        return self._core

    def _memory(self) -> MemorySummary:
        """Runs on the worker thread."""
        opened = self._opened
        if self._core is None:
            return _weights_only(opened)
        return replace(self._core.memory(opened.instance), devices=opened.device_use())

    def _warm_up(self) -> float:
        """Seconds that it took; 0 where it is not wanted. Nothing is left of it."""
        wanted = self._options.warm_up
        if not (self._opened.warm_up if wanted is None else wanted):
            return 0.0
        self._stage("warming up")
        started = self._clock()
        chunk, context = self._options.prefill_chunk, self._opened.max_context
        if self._core is None:
            self.score([0] * min(context, chunk + 2))
        else:
            vocabulary = self._opened.instance.frontend.vocab_size
            sizes = WarmUpSizes(self._options.max_concurrency, chunk, context, vocabulary)
            ingress = self._open_ingress()
            assert ingress is not None
            warm_up(ingress, self._lifecycle, sizes)
            self._try_drafts(ingress)
            start_afresh(self._core, self._lifecycle)
        return self._clock() - started

    def _try_drafts(self, ingress: Ingress) -> None:
        """Part of the warm-up of an engine that drafts."""
        told = self._opened.details.get("draft")
        if told is not None:
            self._draft_length = try_drafts(ingress)
            judge_drafts(told["backend"], self._draft_length)

    def _keep_gap(self) -> dict[str, Any]:
        """What was measured and chosen for ``max_gap_ms``; nothing of it is left but the chunk."""
        bound = self._options.max_gap_ms
        if bound is None or self._core is None:
            return {}
        self._stage("timing chunks")
        program, frontend = self._core.program, self._opened.instance.frontend
        found = keep_gap(bound, program, frontend, self._lifecycle, self._clock)
        start_afresh(self._core, self._lifecycle)
        return found

    def _require_ingress(self) -> Ingress:
        if self._ingress is None:
            raise no_generation()
        return self._ingress

    def _open_ingress(self) -> Ingress | None:
        if self._scoring is not None:
            return None
        return Ingress(
            self._opened.instance.frontend,
            self._opened.max_context,
            self._options.queue_timeout,
            self._lifecycle,
            self._gate,
            self._clock,
        )

    def _frontend(self) -> Frontend:
        if self.availability().state in (AvailabilityState.CLOSED, AvailabilityState.FAILED):
            raise self._lifecycle.unavailable()
        return self._opened.instance.frontend


def _close_worker(worker: EngineWorker) -> None:
    worker.stop()
    worker.join()


def _weights_only(opened: OpenedInstance) -> MemorySummary:
    return MemorySummary(
        bytes=opened.instance.memory(),
        pages_total={},
        pages_free={},
        state_slots_total=0,
        state_slots_free=0,
        devices=opened.device_use(),
    )


def _summarise(
    opened: OpenedInstance,
    options: EngineOptions,
    memory: MemorySummary,
    gap: dict[str, Any],
    draft_length: float | None,
) -> LoadSummary:
    frontend, details = opened.instance.frontend, dict(opened.details)
    if gap:
        details["max_gap"] = gap
    if draft_length is not None:
        details["draft"] = {**details["draft"], "tokens_per_round": round(draft_length, 2)}
    return LoadSummary(
        name=opened.instance.name,
        architecture=opened.architecture,
        source=opened.source,
        devices=opened.devices,
        max_context=opened.max_context,
        max_concurrency=options.max_concurrency,
        prefill_chunk=gap.get("chunk", options.prefill_chunk),
        vocab_size=frontend.vocab_size,
        default_sampling=frontend.default_sampling,
        seconds=0.0,
        memory=memory,
        details=details,
    )
