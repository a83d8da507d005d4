"""What a scripted engine answers, and the handle that plays it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ninfer_core.contract.errors import EngineFailure, RequestError
from ninfer_core.contract.events import (
    Channel,
    Delta,
    Failed,
    Finished,
    FinishReason,
    GenerationEvent,
    GenerationResult,
    GenerationStart,
    PromptProgress,
    Timings,
    ToolCall,
    ToolDelta,
    Usage,
)
from ninfer_core.contract.requests import ConsumerMode, GenerationOptions
from ninfer_core.contract.sampling import TokenLogprobs, TopLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Deltas and how they end. ``interval`` is the pause before each delta in seconds.

    ``error`` ends the request instead of ``finish``; ``starts`` False fails before the start.
    ``timings`` are reported as they are, but for the rounds; the usage takes its cached tokens from
    them. ``progress`` is published to who asks for it, with the same pauses.
    """

    deltas: tuple[Delta, ...]
    finish: FinishReason = FinishReason.STOP_TOKEN
    error: RequestError | None = None
    starts: bool = True
    interval: float = 0.0
    warnings: tuple[str, ...] = ()
    timings: Timings = Timings(prefill=0.5, decode=0.25)
    progress: tuple[PromptProgress, ...] = ()

    @classmethod
    def of(cls, text: str, *, reasoning: str = "", **fields: Any) -> Reply:
        """One delta for each character of ``reasoning`` and then of ``text``."""
        parts = [Delta(channel=Channel.REASONING, text=c) for c in reasoning]
        parts += [Delta(channel=Channel.CONTENT, text=c) for c in text]
        return cls(deltas=tuple(parts), **fields)

    def call(self, name: str, *fragments: str) -> Reply:
        """The same reply followed by a tool call whose arguments arrive as ``fragments``."""
        index = sum(d.tool is not None and d.tool.name is not None for d in self.deltas)
        first = ToolDelta(index=index, id=f"call_{index}", name=name)
        tools = (first, *(ToolDelta(index=index, arguments=f) for f in fragments))
        deltas = tuple(Delta(channel=Channel.TOOL_CALL, tool=tool) for tool in tools)
        return replace(self, deltas=self.deltas + deltas)


def _with_tokens(delta: Delta, start: int, logprobs: int | None) -> Delta:
    text = delta.text if delta.tool is None else (delta.tool.name or "") + delta.tool.arguments
    ids = tuple(text.encode())
    if logprobs is None:
        return replace(delta, token_ids=ids)
    rows = tuple(_row(start + i, token, logprobs) for i, token in enumerate(ids))
    return replace(delta, token_ids=ids, logprobs=rows)


def _row(position: int, token: int, alternatives: int) -> TokenLogprobs:
    base = position % 4
    top = tuple(TopLogprob((token + j) % 256, -(base + j) / 4) for j in range(alternatives))
    return TokenLogprobs(token, -base / 4, top)


class _Transcript:
    """What was published so far, as a result."""

    def __init__(self, prompt_tokens: int, notes: tuple[str, ...]) -> None:
        self.deltas: list[Delta] = []
        self.prompt_tokens = prompt_tokens
        self.notes = notes

    @property
    def tokens(self) -> int:
        return sum(len(delta.token_ids) for delta in self.deltas)

    def _text(self, channel: Channel) -> str:
        return "".join(d.text for d in self.deltas if d.channel is channel)

    def _calls(self) -> tuple[ToolCall, ...]:
        calls: dict[int, ToolCall] = {}
        for tool in (d.tool for d in self.deltas if d.tool is not None):
            old = calls.get(tool.index, ToolCall(tool.id or "", tool.name or "", ""))
            calls[tool.index] = replace(old, arguments=old.arguments + tool.arguments)
        return tuple(calls.values())

    def start(self, timings: Timings) -> GenerationStart:
        return GenerationStart(
            self.prompt_tokens,
            timings.cached_tokens,
            timings.reuse_reason,
            self.notes,
            timings.reuse_point,
            timings.reuse_tier,
        )

    def result(self, finish: FinishReason, reply: Reply) -> GenerationResult:
        reasoning = [d for d in self.deltas if d.channel is Channel.REASONING]
        return GenerationResult(
            text=self._text(Channel.CONTENT),
            reasoning=self._text(Channel.REASONING),
            tool_calls=self._calls() if finish.natural else (),
            token_ids=tuple(t for d in self.deltas for t in d.token_ids),
            finish_reason=finish,
            usage=Usage(
                prompt_tokens=self.prompt_tokens,
                completion_tokens=self.tokens,
                cached_tokens=reply.timings.cached_tokens,
                reasoning_tokens=sum(len(d.token_ids) for d in reasoning),
            ),
            timings=replace(reply.timings, rounds=self.tokens),
            logprobs=tuple(row for d in self.deltas for row in d.logprobs),
            notes=self.notes,
            warnings=reply.warnings,
        )


class ScriptedHandle:
    """Plays a reply on a thread of its own; implements ``GenerationHandle``."""

    def __init__(
        self,
        request_id: str,
        reply: Reply,
        options: GenerationOptions,
        *,
        prompt_tokens: int,
        room: int,
        on_end: Callable[[], None],
    ) -> None:
        self.request_id = request_id
        self.cancelled = threading.Event()
        self.ended = False
        self._reply = reply
        self._options = options
        asked = options.max_new_tokens
        self._limit = room if asked is None else min(asked, room)
        clamped = asked is not None and asked > room
        notes = (f"max_new_tokens was clamped from {asked} to {room}",) if clamped else ()
        self._transcript = _Transcript(prompt_tokens, notes)
        self._events: queue.SimpleQueue[GenerationEvent | None] = queue.SimpleQueue()
        self._on_end = on_end
        self._wake: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._play, name=request_id, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def next_event(self, timeout: float | None = None) -> GenerationEvent | None:
        try:
            return (
                self._events.get(timeout=timeout) if timeout else self._events.get(timeout is None)
            )
        except queue.Empty:
            raise TimeoutError("no event in time") from None

    def subscribe(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        wake()

    def __iter__(self) -> Iterator[GenerationEvent]:
        while (event := self.next_event()) is not None:
            yield event

    def result(self, timeout: float | None = None) -> GenerationResult:
        for event in self:
            if isinstance(event, Finished):
                return event.result
            if isinstance(event, Failed):
                raise event.error
        raise EngineFailure("the handle ended without a result")

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        self.cancel()

    def _put(self, event: GenerationEvent | None) -> None:
        self._events.put(event)
        self._wake()

    def _play(self) -> None:
        end = self._run()
        self.ended = True
        self._put(end)
        self._put(None)
        self._on_end()

    def _run(self) -> Finished | Failed:
        transcript, reply = self._transcript, self._reply
        if reply.starts:
            self._put(transcript.start(reply.timings))
        finish = self._publish() if reply.starts else reply.finish
        result = transcript.result(finish, reply)
        if reply.error is not None and finish is not FinishReason.CANCELLED:
            return Failed(reply.error, result if transcript.deltas else None)
        return Finished(result)

    def _publish(self) -> FinishReason:
        for step in self._reply.progress if self._options.progress else ():
            self.cancelled.wait(self._reply.interval)
            self._put(step)
        for delta in self._reply.deltas:
            if self.cancelled.wait(self._reply.interval):
                return FinishReason.CANCELLED
            if self._transcript.tokens >= self._limit:
                return FinishReason.OUTPUT_LIMIT
            delta = _with_tokens(delta, self._transcript.tokens, self._options.logprobs)
            self._transcript.deltas.append(delta)
            if self._options.consumer is ConsumerMode.STREAMING:
                self._put(delta)
        return self._reply.finish
