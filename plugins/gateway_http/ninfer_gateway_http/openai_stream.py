"""Answering in the OpenAI manner, whole or as a stream, whatever the objects look like."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.events import (
    Channel,
    Delta,
    GenerationEvent,
    GenerationResult,
    GenerationStart,
    PromptProgress,
    Usage,
)
from ninfer_gateway_http import sse
from ninfer_gateway_http.choices import ChoiceEvent, Choices, Part, clamped_for_any
from ninfer_gateway_http.errors import ErrorReply, on_the_wire
from ninfer_gateway_http.extras import notes_of_all, refuse_clamped
from ninfer_gateway_http.gateway import Gateway
from ninfer_gateway_http.replies import usage_report
from ninfer_gateway_http.schema import GenerationFields
from ninfer_gateway_http.streams import (
    Facts,
    finished,
    guarded,
    note_result,
    start_of,
    warning_header,
)
from ninfer_gateway_http.usage import pace, usage_of

JsonDict = dict[str, Any]


class Writer(Protocol):
    """Writes the objects of one reply; ``index`` is that of the choice."""

    @property
    def bare(self) -> bool:
        """Whether the chunk of a delta without a tool depends on its text and channel alone."""
        ...

    def whole(self, results: Sequence[GenerationResult]) -> JsonDict: ...

    def opening(self, index: int) -> JsonDict: ...

    def empty(self, index: int) -> JsonDict: ...

    def delta(self, index: int, delta: Delta) -> JsonDict | None: ...

    def closing(self, index: int, result: GenerationResult) -> JsonDict: ...

    def last(self) -> JsonDict: ...


async def reply(
    request: Request,
    body: GenerationFields,
    parts: Sequence[Part],
    writer: Writer,
    warnings: Iterable[str],
) -> Response:
    """Submit ``parts`` and answer with one choice for each. Raises what submitting raises."""
    gateway: Gateway = request.app.state.gateway
    facts: Facts = request.scope["state"]
    clamped = clamped_for_any(parts, gateway.model.max_context)
    async with AsyncExitStack() as owner:
        choices = await owner.enter_async_context(gateway.choices(parts, request.receive))
        # Status and headers wait for admission, so that a refusal still has its own status.
        first, start = await _admitted(choices)
        notes = [on_the_wire(note) for note in notes_of_all(start.notes, clamped)]
        if gateway.settings.strict:
            refuse_clamped(notes)
        headers = warning_header((*warnings, *notes))
        if not body.stream:
            results = await _results([first], choices, len(parts), facts)
            return JSONResponse(writer.whole(results), headers=headers)
        keep_alive = gateway.settings.keep_alive
        run = _Run(choices, writer, body, keep_alive, facts)
        framed = _framed(run.chunks([first]))
        chunks = sse.batched(framed, lambda: choices.pending, seconds=keep_alive)
        events = guarded(chunks, facts, _failure)
        return sse.EventStream(_ended(events, facts), owner.pop_all(), headers)


async def _admitted(choices: Choices) -> tuple[ChoiceEvent, GenerationStart]:
    """The first start of a choice, as it came and by itself. Raises what a choice ended with before
    any started."""
    item = await choices.next_event()
    if item is None:
        raise EngineFailure("a request ended without a result")
    return item, start_of(item[1])


async def _results(
    seen: Sequence[ChoiceEvent], choices: Choices, count: int, facts: Facts
) -> list[GenerationResult]:
    """The results of all choices, in their order; some events were ``seen`` already."""
    results: dict[int, GenerationResult] = {}
    early = deque(seen)
    while (item := early.popleft() if early else await choices.next_event()) is not None:
        index, event = item
        if not isinstance(event, Delta | GenerationStart | PromptProgress):
            results[index] = note_result(facts, finished(event))
    if len(results) < count:
        raise EngineFailure("a request ended without a result")
    return [results[index] for index in range(count)]


async def _framed(chunks: AsyncIterator[JsonDict | bytes | None]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        if isinstance(chunk, bytes):
            yield chunk
        else:
            yield sse.KEEP_ALIVE if chunk is None else sse.event(chunk)


def _failure(reply: ErrorReply) -> list[bytes]:
    return [sse.event(reply.body())]


async def _ended(events: AsyncIterator[bytes], facts: Facts) -> AsyncIterator[bytes]:
    """``events`` and the closing word, once, unless the peer has left."""
    async for event in events:
        yield event
    if facts.get("finish") != "client_gone":
        yield sse.DONE


@dataclass(slots=True)
class _Progress:
    """What the reader of one choice has seen so far. Times in seconds, of the gateway's clock."""

    start: GenerationStart
    began: float = field(default_factory=time.monotonic)
    first: float | None = None
    tokens: int = 0

    def count(self, delta: Delta) -> None:
        self.tokens += len(delta.token_ids)
        if self.first is None:
            self.first = time.monotonic()

    def timings(self) -> JsonDict:
        now = time.monotonic()
        first = now if self.first is None else self.first
        read = self.start.prompt_tokens - self.start.reused_tokens
        times = pace(read, 1000 * (first - self.began), self.tokens, 1000 * (now - first))
        return {"cache_n": self.start.reused_tokens, **times}


class _Run:
    """One stream: chunks of all choices as they come, then the usage where it is wanted."""

    def __init__(
        self,
        choices: Choices,
        writer: Writer,
        body: GenerationFields,
        keep_alive: float,
        facts: Facts,
    ) -> None:
        self._choices = choices
        self._writer = writer
        self._keep_alive = keep_alive
        self._facts = facts
        self._n = body.n or 1
        options = body.stream_options
        self._usage = bool(options and options.include_usage)
        self._running_usage = bool(options and options.continuous_usage_stats)
        self._timings = bool(body.timings_per_token)
        self._reports = bool(body.return_progress)
        self._bare = writer.bare and not (self._running_usage or self._timings)
        self._stencils: dict[tuple[int, Channel], sse.Stencil | None] = {}
        self._seen: dict[int, _Progress] = {}
        self._results: list[GenerationResult] = []

    async def chunks(self, seen: Sequence[ChoiceEvent]) -> AsyncIterator[JsonDict | bytes | None]:
        """All chunks, those of the events that were ``seen`` first, and None whenever nothing came
        for a while. Bytes are a chunk that is framed already, without any where an event has no
        chunk."""
        for item in seen:
            for chunk in self._chunks(*item):
                yield chunk
        while True:
            try:
                following = await self._choices.next_event(self._keep_alive)
            except TimeoutError:
                yield None
                continue
            if following is None:
                break
            silent = True
            for chunk in self._chunks(*following):
                silent = False
                yield chunk
            if silent:
                yield b""
        if self._usage:
            yield self._writer.last() | {"usage": usage_report(self._results, self._n)}

    def _chunks(self, index: int, event: GenerationEvent) -> Iterable[JsonDict | bytes]:
        if self._bare and isinstance(event, Delta) and event.tool is None and event.text:
            return self._text(index, event)
        chunks = self._of(index, event)
        return map(self._with_counts, chunks) if self._running_usage else chunks

    def _of(self, index: int, event: GenerationEvent) -> Iterable[JsonDict]:
        if isinstance(event, Delta):
            return self._delta(index, event)
        if isinstance(event, GenerationStart):
            return self._start(index, event)
        if isinstance(event, PromptProgress):
            return [self._read(index, event)]
        result = note_result(self._facts, finished(event))
        self._results.append(result)
        return [self._writer.closing(index, result)]

    def _start(self, index: int, event: GenerationStart) -> Iterable[JsonDict]:
        self._seen[index] = _Progress(event)
        yield self._writer.opening(index)
        if self._reports:
            reused = event.reused_tokens
            yield self._read(
                index, PromptProgress(done=reused, total=event.prompt_tokens, cached=reused)
            )

    def _read(self, index: int, event: PromptProgress) -> JsonDict:
        elapsed = time.monotonic() - self._seen[index].began
        progress = {
            "total": event.total,
            "cache": event.cached,
            "processed": event.done,
            "time_ms": 1000 * elapsed,
        }
        return self._writer.empty(index) | {"prompt_progress": progress}

    def _text(self, index: int, event: Delta) -> Iterable[bytes]:
        """As :meth:`_delta` for a chunk of which only the text is new."""
        self._seen[index].count(event)
        key = index, event.channel
        if key not in self._stencils:
            sample = self._writer.delta(index, replace(event, text=sse.Stencil.HOLE))
            self._stencils[key] = sse.Stencil(sse.event(sample)) if sample else None
        stencil = self._stencils[key]
        return () if stencil is None else (stencil.filled(event.text),)

    def _delta(self, index: int, event: Delta) -> Iterable[JsonDict]:
        seen = self._seen[index]
        seen.count(event)
        chunk = self._writer.delta(index, event)
        if chunk is None:
            return ()
        return [chunk | {"timings": seen.timings()}] if self._timings else [chunk]

    def _with_counts(self, chunk: JsonDict) -> JsonDict:
        """``chunk`` with the usage of all choices up to it."""
        seen = self._seen.values()
        counts = Usage(
            prompt_tokens=sum(one.start.prompt_tokens for one in seen),
            completion_tokens=sum(one.tokens for one in seen),
            cached_tokens=sum(one.start.reused_tokens for one in seen),
            reasoning_tokens=sum(result.usage.reasoning_tokens for result in self._results),
        )
        return chunk | {"usage": usage_of(counts)}
