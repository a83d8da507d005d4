"""Conversations that grow turn by turn, as token ids or as messages."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ninfer_core.contract.events import GenerationResult
from ninfer_core.contract.requests import CacheRequest, PromptInput
from ninfer_ops_triton.bench.drive import prompts

Tokenize = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Tokens of what stands before the first turn, of each question, of each answer."""

    system: int
    user: int
    new: int


class Talk(Protocol):
    """One conversation. ``ask`` adds the next question and gives the whole prompt, ``answered``
    adds what came back."""

    def ask(self, cache: CacheRequest) -> PromptInput: ...

    def answered(self, result: GenerationResult) -> None: ...


class TokenTalk:
    """Random ids. A prompt is the last one, the tokens of its answer and new ids, so that it can
    start where the answer ended. The system part is the same in every conversation."""

    def __init__(self, number: int, sizes: Sizes, vocabulary: int) -> None:
        self._sizes = sizes
        self._vocabulary = vocabulary
        self._seed = 1000 * (number + 1)
        self._ids = prompts(1, sizes.system, vocabulary, 0)[0]

    def ask(self, cache: CacheRequest) -> PromptInput:
        self._seed += 1
        self._ids += prompts(1, self._sizes.user, self._vocabulary, self._seed)[0]
        return PromptInput(token_ids=tuple(self._ids), cache=cache)

    def answered(self, result: GenerationResult) -> None:
        self._ids += result.token_ids


class MessageTalk:
    """Messages of short sentences, in the model's own template; at least as many tokens as asked
    for. The system message is the same in every conversation."""

    def __init__(self, number: int, sizes: Sizes, tokenize: Tokenize) -> None:
        self._sizes = sizes
        self._tokenize = tokenize
        self._random = random.Random(1000 * (number + 1))
        system = sentences(random.Random(0), sizes.system, tokenize)
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": system}]

    def ask(self, cache: CacheRequest) -> PromptInput:
        text = sentences(self._random, self._sizes.user, self._tokenize)
        self._messages.append({"role": "user", "content": text})
        return PromptInput(messages=tuple(self._messages), cache=cache)

    def answered(self, result: GenerationResult) -> None:
        turn = {"role": "assistant", "content": result.text}
        if result.reasoning:
            turn["reasoning_content"] = result.reasoning
        self._messages.append(turn)


def sentences(rng: random.Random, tokens: int, tokenize: Tokenize) -> str:
    """As few sentences as have at least ``tokens`` tokens."""
    text = _sentence(rng)
    while len(tokenize(text)) < tokens:
        text += f" {_sentence(rng)}"
    return text


def _sentence(rng: random.Random) -> str:
    return f"Box {rng.randrange(100)} holds {rng.randrange(100)} parts."
