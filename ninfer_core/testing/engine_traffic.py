"""Agent traffic for the context cache: conversations that grow, branch and are tried again.

Everything is drawn beforehand from a seed. The fake model's answers depend on nothing but prompt
and seed, so that the same requests reach every policy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from ninfer_core.contract.frontend import RestoreKind
from ninfer_core.testing.fake_law import FIRST_PLAIN_TOKEN, continuation

VOCAB = 512
OPENING = (3, 4, 5)
"""What the template puts before an answer."""

Point = tuple[int, str]


@dataclass(frozen=True, slots=True)
class TrafficMix:
    """Sizes in tokens and probabilities per turn. ``live`` conversations take turns at random;
    ``thinkers`` is the share of those whose template drops the first part of finished answers."""

    requests: int = 2000
    seed: int = 20
    systems: tuple[int, ...] = (1500, 900, 600)
    live: int = 10
    turns: tuple[int, int] = (4, 16)
    user: tuple[int, int] = (30, 160)
    tool: tuple[int, int] = (80, 500)
    answer: tuple[int, int] = (20, 110)
    retry: float = 0.06
    edit: float = 0.06
    tools: float = 0.5
    thinkers: float = 0.4
    max_context: int = 16384


@dataclass(frozen=True, slots=True)
class TrafficRequest:
    """``conversation`` numbers those that must not overlap."""

    conversation: int
    tokens: tuple[int, ...]
    points: tuple[Point, ...]
    seed: int
    answer: int


@dataclass(slots=True)
class _Message:
    role: str
    tokens: list[int]
    thoughts: int = 0


@dataclass(slots=True)
class _Conversation:
    number: int
    system: list[int]
    thinks: bool
    turns: int
    messages: list[_Message] = field(default_factory=list)

    def rendered(self) -> tuple[list[int], tuple[Point, ...]]:
        """The prompt and its restore points. A thinker's answers lose their thoughts once a later
        user message stands behind them."""
        users = [at for at, message in enumerate(self.messages) if message.role == "user"]
        tokens, points = list(self.system), {len(self.system): RestoreKind.SYSTEM_AND_TOOLS}
        for at, message in enumerate(self.messages):
            if message.role == "answer":
                tokens += OPENING
                dropped = message.thoughts if self.thinks and at < users[-1] else 0
                tokens += message.tokens[dropped:]
            else:
                tokens += [6 if message.role == "user" else 7, *message.tokens]
            if message.role == "user":
                last = self.thinks and at == users[-1]
                points[len(tokens)] = RestoreKind.TURN_CLOSURE if last else RestoreKind.USER_MESSAGE
        points[len(tokens)] = RestoreKind.RESPONSE_REPLAY
        tokens += OPENING
        return tokens, tuple((at, kind.value) for at, kind in sorted(points.items()))


class _Source:
    def __init__(self, mix: TrafficMix) -> None:
        self.mix = mix
        self.random = random.Random(mix.seed)
        self.systems = [self.text(length) for length in mix.systems]
        self.started = 0

    def text(self, length: int) -> list[int]:
        return [self.random.randrange(8, VOCAB) for _ in range(length)]

    def within(self, bounds: tuple[int, int]) -> int:
        return self.random.randint(*bounds)

    def conversation(self) -> _Conversation:
        self.started += 1
        thinks = self.random.random() < self.mix.thinkers
        system = self.random.choice(self.systems)
        return _Conversation(self.started, system, thinks, self.within(self.mix.turns))

    def turn(self, one: _Conversation) -> None:
        """Change the conversation as its next request does."""
        chance, answered = self.random.random(), one.messages and one.messages[-1].role == "answer"
        if answered and chance < self.mix.retry:
            one.messages.pop()
        elif answered and chance < self.mix.retry + self.mix.edit:
            while one.messages.pop().role != "user":
                pass
            one.messages.append(_Message("user", self.text(self.within(self.mix.user))))
        elif answered and self.random.random() < self.mix.tools:
            one.messages.append(_Message("tool", self.text(self.within(self.mix.tool))))
        else:
            one.messages.append(_Message("user", self.text(self.within(self.mix.user))))


def agent_traffic(mix: TrafficMix) -> Iterator[TrafficRequest]:
    """``mix.requests`` requests in the order of their arrival."""
    source = _Source(mix)
    live = [source.conversation() for _ in range(mix.live)]
    for number in range(mix.requests):
        place = source.random.randrange(len(live))
        one = live[place]
        source.turn(one)
        tokens, points = one.rendered()
        answer = source.within(mix.answer)
        yield TrafficRequest(one.number, tuple(tokens), points, number, answer)
        said = continuation(tokens, number, VOCAB, answer, may_stop=False)
        assert min(said) >= FIRST_PLAIN_TOKEN
        one.messages.append(_Message("answer", said, thoughts=2 * answer // 3))
        one.turns -= 1
        if one.turns == 0 or len(tokens) > mix.max_context - 2000:
            live[place] = source.conversation()
