"""An engine that speaks a prepared script: what a gateway's own tests run against.

Tokens are the UTF-8 bytes of the text, so counts, bytes and log-probabilities can be worked out by
hand: token ``i`` of a reply has log-probability ``-(i % 4) / 4``, and alternative ``j`` of it is
``(token + j) % 256`` at ``-(i % 4 + j) / 4``.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ninfer_core.contract.engine import (
    Availability,
    AvailabilityState,
    EngineStats,
    LoadSummary,
    MemorySummary,
)
from ninfer_core.contract.errors import (
    ContextLengthExceeded,
    InvalidPrompt,
    Overloaded,
    RequestError,
    Unavailable,
    Unsupported,
)
from ninfer_core.contract.events import Channel
from ninfer_core.contract.frontend import PreparedPrompt, PromptIdentity
from ninfer_core.contract.requests import GenerationOptions, JsonObject, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.testing.scripted_reply import Reply, ScriptedHandle

Script = Callable[[PromptInput, GenerationOptions], Reply]


def echo(prompt: PromptInput, options: GenerationOptions) -> Reply:
    """Answer with the last message's text."""
    return Reply.of(_content((prompt.messages or ({"content": prompt.text},))[-1]))


def plain_text(prompt: PromptInput) -> str:
    """The prompt as lines ``role: content``; parts are joined."""
    if prompt.text is not None:
        return prompt.text
    return "\n".join(f"{turn['role']}: {_content(turn)}" for turn in prompt.messages or ())


def _content(message: JsonObject) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


class ScriptedEngine:
    """Implements ``EngineLike``; ``script`` says what to answer to each request.

    ``requests`` records what arrived. ``default_sampling`` is greedy at temperature 0.5 so that a
    gateway that forgets the model's defaults is noticed.
    """

    def __init__(
        self,
        script: Script = echo,
        *,
        name: str = "scripted",
        max_context: int = 4096,
        capacity: int = 8,
    ) -> None:
        self.script = script
        self.requests: list[tuple[PromptInput, GenerationOptions]] = []
        self.handles: list[ScriptedHandle] = []
        self.closed = False
        self._name = name
        self._max_context = max_context
        self._capacity = capacity
        self._numbers = itertools.count(1)
        self._state = Availability(AvailabilityState.READY)
        self._quiet = threading.Condition()

    def prepare(self, prompt: PromptInput) -> PreparedPrompt:
        import numpy as np

        _refuse_constraints(prompt)
        given = prompt.token_ids
        ids = self.tokenize(plain_text(prompt)) if given is None else list(given)
        if not ids:
            raise InvalidPrompt("the prompt is empty", param="messages", hint="give some text")
        if len(ids) >= self._max_context:
            raise ContextLengthExceeded(len(ids), self._max_context)
        return PreparedPrompt(
            token_ids=np.asarray(ids, dtype=np.int32),
            positions=None,
            rope_delta=0,
            media=(),
            identity=PromptIdentity(b"", (), "scripted"),
            restore_points=(),
            starts_in=Channel.CONTENT,
            grammar=None,
            request=prompt,
        )

    def submit(
        self,
        prompt: PromptInput | PreparedPrompt,
        options: GenerationOptions | None = None,
    ) -> ScriptedHandle:
        options = options or GenerationOptions()
        if not self._state.ready:
            raise Unavailable(f"the engine is {self._state.state.value}")
        prepared = self.prepare(prompt) if isinstance(prompt, PromptInput) else prompt
        if self._running() >= self._capacity:
            raise Overloaded(f"{self._capacity} requests are outstanding")
        self.requests.append((prepared.request, options))
        handle = ScriptedHandle(
            f"request-{next(self._numbers)}",
            self.script(prepared.request, options),
            options,
            prompt_tokens=prepared.length,
            room=self._max_context - prepared.length,
            on_end=self._ended,
        )
        self.handles.append(handle)
        handle.start()
        return handle

    def count_tokens(self, prompt: PromptInput) -> int:
        return self.prepare(prompt).length

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        return list(text.encode())

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode(errors="replace")

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        return [bytes([token]) for token in token_ids]

    def score(self, token_ids: Sequence[int], first_target: int = 1) -> list[float]:
        raise Unsupported("a scripted engine does not score")

    def availability(self) -> Availability:
        return self._state

    def load_summary(self) -> LoadSummary:
        return LoadSummary(
            name=self._name,
            architecture="scripted",
            source="script",
            devices=("cpu",),
            max_context=self._max_context,
            max_concurrency=self._capacity,
            prefill_chunk=1024,
            vocab_size=256,
            default_sampling=SamplingParams(temperature=0.5, top_k=20),
            seconds=0.0,
        )

    def memory_summary(self) -> MemorySummary:
        return MemorySummary(
            bytes={}, pages_total={}, pages_free={}, state_slots_total=0, state_slots_free=0
        )

    def stats(self) -> EngineStats:
        return EngineStats(running=self._running(), submitted=len(self.handles))

    def fail(self, reason: str) -> None:
        """Become unavailable, as an engine does after an invariant broke."""
        self._state = Availability(AvailabilityState.FAILED, reason)

    def drain(self, deadline: float | None = None) -> bool:
        self._state = Availability(AvailabilityState.DRAINING)
        with self._quiet:
            return self._quiet.wait_for(lambda: not self._running(), timeout=deadline)

    def close(self) -> None:
        self._state = Availability(AvailabilityState.CLOSED)
        self.closed = True
        for handle in self.handles:
            handle.close()

    def __enter__(self) -> ScriptedEngine:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def _running(self) -> int:
        return sum(not handle.ended for handle in self.handles)

    def _ended(self) -> None:
        with self._quiet:
            self._quiet.notify_all()


def _refuse_constraints(prompt: PromptInput) -> None:
    """As an engine without a grammar backend does."""
    if prompt.response_format.kind != "text":
        raise Unsupported("response_format needs a grammar backend", param="response_format")
    if prompt.tool_choice.mode in ("required", "named"):
        raise Unsupported("tool_choice needs a grammar backend", param="tool_choice")


def failing(error: RequestError, *, after: str = "") -> Script:
    """A script whose requests end with ``error``, after ``after`` was committed."""

    def script(prompt: PromptInput, options: GenerationOptions) -> Reply:
        return Reply.of(after, error=error)

    return script
