"""Seeded conversations with the demo model, as clients lead them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ninfer_core.contract.events import GenerationResult
from ninfer_core.contract.requests import CacheMode, CacheRequest, ChatOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_demo_model.tasks import draw, words

Message = dict[str, Any]

QUESTIONS = ("copy", "reverse", "sort", "arithmetic", "count", "extract", "recall_single")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. ``cancel_after`` tokens its consumer gives it up."""

    prompt: PromptInput
    sampling: SamplingParams
    max_new_tokens: int = 24
    cancel_after: int | None = None


Talk = Generator[Ask, GenerationResult, None]
"""Yields what is asked next and takes the answer to it."""


def spoken(rng: random.Random, count: int) -> str:
    """``count`` words of filler, each at least a token."""
    return " ".join(rng.choice(words.NOUNS) for _ in range(count)) + "."


class Client:
    """One side of a conversation: what it says, how it wants to be answered, what was said."""

    def __init__(
        self,
        rng: random.Random,
        *,
        system: str = "",
        tools: Sequence[Any] = (),
        chat: ChatOptions | None = None,
        cache: CacheRequest | None = None,
    ) -> None:
        self.rng = rng
        self.history: list[Message] = [{"role": "system", "content": system}] if system else []
        self._tools = tuple(tools)
        self._chat = chat or ChatOptions()
        self._cache = cache or CacheRequest()
        self._sampling = _sampling(rng)

    def question(self) -> str:
        """A task, at times behind some reading."""
        asked = str(draw(self.rng.choice(QUESTIONS), self.rng, "any").messages[-1]["content"])
        if self.rng.random() < 0.3:
            asked = f"Read this text: {spoken(self.rng, self.rng.randint(20, 45))} {asked}"
        return asked

    def say(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def ask(self, cancel_after: int | None = None) -> Ask:
        prompt = PromptInput(
            messages=list(self.history), tools=self._tools, chat=self._chat, cache=self._cache
        )
        return Ask(prompt=prompt, sampling=self._sampling, cancel_after=cancel_after)

    def hear(self, result: GenerationResult) -> None:
        """Put the answer into the history, with its thought and calls."""
        message: Message = {"role": "assistant", "content": result.text}
        if result.reasoning:
            message["reasoning_content"] = result.reasoning
        if result.tool_calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in result.tool_calls
            ]
        self.history.append(message)


def _sampling(rng: random.Random) -> SamplingParams:
    if rng.random() < 0.5:
        return SamplingParams(temperature=0.0)
    return SamplingParams(
        temperature=rng.uniform(0.5, 1.3),
        top_p=rng.choice([1.0, 0.9]),
        presence_penalty=rng.choice([0.0, 0.5]),
        repetition_penalty=rng.choice([1.0, 1.1]),
        seed=rng.getrandbits(64),
    )


def shortened(talk: Talk, most: int) -> Talk:
    """The same with answers of ``most`` tokens."""
    ask = next(talk)
    while True:
        result = yield replace(ask, max_new_tokens=most)
        try:
            ask = talk.send(result)
        except StopIteration:
            return


def _system(rng: random.Random, chance: float = 0.6) -> str:
    if rng.random() >= chance:
        return ""
    return f"You answer briefly. {spoken(rng, rng.randint(10, 60))}"


def growing(rng: random.Random, turns: int) -> Talk:
    """History grows by question and answer; thinking off."""
    yield from _exchanges(Client(rng, system=_system(rng)), turns)


def thinking(rng: random.Random, turns: int) -> Talk:
    """The answers' thoughts stand in the history, and the template strips them."""
    chat = ChatOptions(thinking=True)
    yield from _exchanges(Client(rng, system=_system(rng), chat=chat), turns)


def remembering(rng: random.Random, turns: int) -> Talk:
    """The template keeps the thoughts, so that every answer is read as it was written."""
    chat = ChatOptions(thinking=True, template_kwargs={"preserve_thinking": True})
    yield from _exchanges(Client(rng, system=_system(rng), chat=chat), turns)


def sharing(rng: random.Random, turns: int) -> Talk:
    """One of several conversations under the same system prompt."""
    system = f"You are the assistant of a shop. {spoken(random.Random(7), 75)}"
    yield from _exchanges(Client(rng, system=system), turns)


def _exchanges(client: Client, turns: int) -> Talk:
    for _ in range(turns):
        client.say(client.question())
        client.hear((yield client.ask()))


def edited(rng: random.Random, turns: int) -> Talk:
    """Every question is asked, changed and asked again."""
    yield from _edits(Client(rng, system=_system(rng)), turns)


def edited_later(rng: random.Random, turns: int) -> Talk:
    """The same behind a long answer."""
    client = Client(rng, system=_system(rng))
    client.say(client.question())
    client.history.append({"role": "assistant", "content": spoken(rng, rng.randint(70, 110))})
    yield from _edits(client, turns)


def _edits(client: Client, turns: int) -> Talk:
    for _ in range(turns):
        client.say(client.question())
        yield client.ask()
        client.history.pop()
        client.say(client.question())
        client.hear((yield client.ask()))


def retried(rng: random.Random, turns: int) -> Talk:
    """Every question is asked twice; the same seed must give the same answer."""
    client = Client(rng, system=_system(rng))
    for _ in range(turns):
        client.say(client.question())
        first = yield client.ask()
        again = yield client.ask()
        if first.token_ids != again.token_ids:
            raise AssertionError(f"asked again: {again.token_ids} after {first.token_ids}")
        client.hear(again)


def cancelled(rng: random.Random, turns: int) -> Talk:
    """Every question is given up after some tokens, and asked again."""
    client = Client(rng, system=_system(rng))
    for _ in range(turns):
        client.say(client.question())
        yield client.ask(cancel_after=rng.randint(0, 4))
        client.hear((yield client.ask()))


def calling(rng: random.Random, turns: int) -> Talk:
    """Questions that need tools; what a call returned is answered in the same turn."""
    case = draw("tools", rng, "any")
    client = Client(rng, system=_system(rng, 0.3), tools=case.tools)
    question = str(case.messages[-1]["content"])
    for _ in range(turns):
        client.say(question)
        result = yield client.ask()
        client.hear(result)
        if result.tool_calls:
            value = rng.choice([str(rng.randint(1, 99)), "done", spoken(rng, 40)])
            client.history += [{"role": "tool", "content": value}] * len(result.tool_calls)
            client.hear((yield client.ask()))
        question = client.question() if rng.random() < 0.3 else _again(case.tools, rng, question)


def _again(tools: Sequence[Any], rng: random.Random, question: str) -> str:
    return f"{question} {json.dumps(rng.choice(words.CITIES))}" if tools else question


def outside(rng: random.Random, turns: int) -> Talk:
    """A conversation that keeps out of the cache."""
    cache = CacheRequest(mode=CacheMode.DISABLED)
    yield from _exchanges(Client(rng, system=_system(rng), cache=cache), turns)


KINDS: dict[str, Callable[[random.Random, int], Talk]] = {
    "growing": growing,
    "thinking": thinking,
    "edited": edited,
    "remembering": remembering,
    "sharing": sharing,
    "calling": calling,
    "retried": retried,
    "cancelled": cancelled,
    "alternating": growing,
    "alternating thinking": thinking,
    "sharing too": sharing,
    "edited later": edited_later,
}
"""Every kind of conversation. Neighbours are led at the same time, a turn of each in turn."""


def talks(
    first: int, count: int, seed: int, turns: Callable[[int], int], kinds: Sequence[str] = ()
) -> list[Talk]:
    """Conversations ``first .. first + count - 1`` of a seed, of each of ``kinds`` in turn."""
    names = list(kinds or KINDS)
    return [
        KINDS[names[index % len(names)]](random.Random(f"{seed}/{index}"), turns(index))
        for index in range(first, first + count)
    ]
