"""The state of a chat: who said what, and asking for the next answer."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

from ninfer_core.console import Interrupt
from ninfer_core.contract.engine import EngineLike
from ninfer_core.contract.events import GenerationResult
from ninfer_core.contract.requests import CacheRequest, ChatOptions, GenerationOptions, PromptInput
from ninfer_core.inputs import parse_messages
from ninfer_gateway_cli.generation import Sink, follow


class Conversation:
    """Turns so far; each answer is asked for with the whole of them.

    An answer that was stopped is kept as far as it came; a request that failed leaves no turn.
    Turns share a session key, so that the engine's cache knows that they belong together.
    """

    def __init__(
        self,
        engine: EngineLike,
        options: GenerationOptions,
        chat: ChatOptions,
        system: str | None = None,
    ) -> None:
        self.engine = engine
        self.system = system
        self._options = options
        self._chat = chat
        self._turns: list[dict[str, Any]] = []
        self._cache = _session()

    @property
    def turns(self) -> int:
        """User turns so far."""
        return sum(turn["role"] == "user" for turn in self._turns)

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self._turns.clear()
        self._cache = _session()

    def ask(self, text: str, sink: Sink, interrupt: Interrupt) -> GenerationResult | None:
        """Answer ``text``. None when a stopped answer could not be ended in time.

        Raises the request's error; the conversation is then as it was before.
        """
        turns = [*self._turns, {"role": "user", "content": text}]
        handle = self.engine.submit(self._prompt(turns), self._next_options())
        try:
            result = follow(handle, sink, interrupt)
        finally:
            handle.close()
        if result is not None:
            self._turns = [*turns, _turn(result)]
        return result

    def _prompt(self, turns: list[dict[str, Any]]) -> PromptInput:
        leading = [{"role": "system", "content": self.system}] if self.system else []
        messages = parse_messages([*leading, *turns])
        return PromptInput(messages=messages, chat=self._chat, cache=self._cache)

    def _next_options(self) -> GenerationOptions:
        """One seed for the chat, another for each turn of it."""
        sampling = self._options.sampling
        seed = ((sampling.seed or 0) + self.turns) % (1 << 64)
        return replace(self._options, sampling=replace(sampling, seed=seed))


def _session() -> CacheRequest:
    return CacheRequest(session_key=secrets.token_hex(16))


def _turn(result: GenerationResult) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": result.text}
    if result.reasoning:
        turn["reasoning_content"] = result.reasoning
    return turn
