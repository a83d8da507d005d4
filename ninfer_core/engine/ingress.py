"""From a prompt and options to a request that the worker can run, on the submitting thread."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from ninfer_core.contract.checkpoints import OutputRules
from ninfer_core.contract.errors import (
    ContextLengthExceeded,
    InvalidPrompt,
    InvalidRequest,
    Unsupported,
)
from ninfer_core.contract.events import FinishReason
from ninfer_core.contract.frontend import CompiledGrammar, Frontend, OutputSession, PreparedPrompt
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.engine.compile import GrammarIngress, demands_form
from ninfer_core.engine.handle import RequestHandle
from ninfer_core.engine.intake import queue_timeout
from ninfer_core.engine.lifecycle import Lifecycle
from ninfer_core.engine.outstanding import OutstandingGate
from ninfer_core.engine.penalties import for_form
from ninfer_core.engine.request_record import RequestRecord, Stopwatch
from ninfer_core.engine.response import Response

ResponseFactory = Callable[[Callable[[], None] | None], Response]


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """How many tokens may come, what reaching that means, and what was changed on the way."""

    tokens: int
    reason: FinishReason
    notes: tuple[str, ...] = ()


class Ingress:
    """Prepares, checks, compiles and posts. Thread safe.

    ``queue_timeout`` in seconds applies where the request names none and counts from the call of
    :meth:`submit`, so that it covers preparation.
    """

    def __init__(
        self,
        frontend: Frontend,
        max_context: int,
        queue_timeout: float | None,
        lifecycle: Lifecycle,
        gate: OutstandingGate,
        clock: Callable[[], float],
        draw_seed: Callable[[], int] = lambda: secrets.randbits(64),
        response: ResponseFactory = Response,
    ) -> None:
        self._frontend = frontend
        self._max_context = max_context
        self._queue_timeout = queue_timeout
        self._lifecycle = lifecycle
        self._gate = gate
        self._clock = clock
        self._draw_seed = draw_seed
        self._response = response
        self._numbers = itertools.count(1)
        self._grammars = GrammarIngress(frontend)

    def submit(
        self,
        prompt: PromptInput | PreparedPrompt,
        options: GenerationOptions,
        *,
        spent: float = 0.0,
        response: ResponseFactory | None = None,
    ) -> RequestHandle:
        """``spent`` seconds have passed since the caller asked; ``response`` makes the place that
        the events go to.

        Raises Overloaded, Unavailable, QueueTimeout, InvalidRequest, ContextLengthExceeded, and
        whatever preparation and compilation raise; nothing is held then.
        """
        started, respond = self._clock() - spent, response or self._response
        self._lifecycle.require_ready()
        if needs_no_model(options):
            return self._post(self._build(prompt, options, started, respond(None)))
        self._gate.take()
        try:
            place = respond(self._gate.give_back)
            return self._post(self._build(prompt, options, started, place))
        except BaseException:
            self._gate.give_back()
            raise

    def close(self) -> None:
        self._grammars.close()

    def _post(self, record: RequestRecord) -> RequestHandle:
        handle = RequestHandle(record, self._lifecycle)
        try:
            self._lifecycle.post(record)
        except BaseException:
            handle.forget()
            raise
        return handle

    def _build(
        self,
        prompt: PromptInput | PreparedPrompt,
        options: GenerationOptions,
        started: float,
        response: Response,
    ) -> RequestRecord:
        prepared = prompt if isinstance(prompt, PreparedPrompt) else self._frontend.prepare(prompt)
        limit = self._limit(prepared, options)
        self._check_tokens(options)
        queue_deadline = self._queue_deadline(options, started)
        compiled = self._compile(prepared, queue_deadline)
        session = self._frontend.open_output(prepared, options, compiled)
        now = self._clock()
        if queue_deadline is not None and now >= queue_deadline:
            raise queue_timeout()
        sampling, notes = for_form(options.sampling, self._frontend.default_sampling, prepared)
        seed = sampling.seed
        return RequestRecord(
            request_id=f"request-{next(self._numbers)}",
            prepared=prepared,
            options=options,
            sampling=replace(sampling, seed=self._draw_seed() if seed is None else seed),
            rules=_rules(options, limit, session),
            limit_reason=limit.reason,
            session=session,
            response=response,
            watch=Stopwatch(submitted=started, prepared=now),
            notes=(*limit.notes, *_min_notes(options, limit), *notes),
            queue_deadline=queue_deadline,
            deadline=None if options.deadline is None else started + options.deadline,
            immediate=limit.tokens == 0 and options.prompt_logprobs is None,
        )

    def _limit(self, prepared: PreparedPrompt, options: GenerationOptions) -> OutputLimit:
        if prepared.length == 0:
            raise InvalidPrompt("the prompt has no tokens", param="messages")
        room = self._max_context - prepared.length
        if room < 0:
            raise ContextLengthExceeded(prepared.length, self._max_context)
        asked = options.max_new_tokens
        if asked is None:
            return OutputLimit(room, FinishReason.CONTEXT_CAPACITY)
        if asked <= room:
            return OutputLimit(asked, FinishReason.OUTPUT_LIMIT)
        note = f"max_new_tokens {asked} was clamped to {room}, what the context has left"
        return OutputLimit(room, FinishReason.CONTEXT_CAPACITY, (note,))

    def _check_tokens(self, options: GenerationOptions) -> None:
        limit = options.max_new_tokens
        if limit is not None and options.min_tokens > limit:
            raise InvalidRequest(
                f"min_tokens is {options.min_tokens}, more than max_new_tokens {limit}",
                param="min_tokens",
            )
        vocabulary = self._frontend.vocab_size
        for name, ids in (
            ("logit_bias", options.sampling.logit_bias),
            ("stop_token_ids", options.stop_token_ids),
        ):
            for token in ids:
                if not 0 <= token < vocabulary:
                    raise InvalidRequest(
                        f"{name} names token {token}; the vocabulary has {vocabulary}", param=name
                    )

    def _queue_deadline(self, options: GenerationOptions, started: float) -> float | None:
        timeout = options.queue_timeout
        if timeout is None:
            timeout = self._queue_timeout
        return None if timeout is None else started + timeout

    def _compile(
        self, prepared: PreparedPrompt, queue_deadline: float | None
    ) -> CompiledGrammar | None:
        if prepared.grammar is None:
            return None
        left = None if queue_deadline is None else max(0.0, queue_deadline - self._clock())
        try:
            return self._grammars.compile(prepared.grammar, left)
        except TimeoutError:
            raise queue_timeout() from None
        except Unsupported:
            if demands_form(prepared.request):
                raise
            return None


def needs_no_model(options: GenerationOptions) -> bool:
    """Whether the request asks for no output and no scores: it takes no place then."""
    return options.max_new_tokens == 0 and options.prompt_logprobs is None


def _min_notes(options: GenerationOptions, limit: OutputLimit) -> tuple[str, ...]:
    asked = options.min_tokens
    if asked <= limit.tokens:
        return ()
    return (f"min_tokens {asked} was clamped to {limit.tokens}, what the context has left",)


def _rules(options: GenerationOptions, limit: OutputLimit, session: OutputSession) -> OutputRules:
    """Both counts lie within the context, whatever was asked for: the Program reckons in int32."""
    stops = session.stop_token_ids
    return OutputRules(
        max_new_tokens=limit.tokens,
        min_tokens=min(options.min_tokens, limit.tokens),
        stop_token_ids=stops,
        suppressed_until_min=stops if options.min_tokens else frozenset(),
        logprobs=options.logprobs,
        prompt_logprobs=options.prompt_logprobs,
    )
