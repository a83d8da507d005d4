"""The generations of one HTTP request, as one stream of events that say which they belong to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ninfer_core.contract.errors import ContextLengthExceeded, Overloaded
from ninfer_core.contract.events import GenerationEvent
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_gateway_http.bell import Bell
from ninfer_gateway_http.bridge import Exchange
from ninfer_gateway_http.joining import take_joined

ChoiceEvent = tuple[int, GenerationEvent]
PAUSE: Final = 0.1
"""Seconds between the tries of a part that finds no room, where no other part of its request is
left to wait for."""
PATIENCE: Final = 30.0
"""Seconds that a part is tried for then."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one choice asks of the engine."""

    prompt: PromptInput | PreparedPrompt
    options: GenerationOptions

    @property
    def known_length(self) -> int:
        """Tokens of the prompt; 0 where they were not counted yet."""
        return self.prompt.length if isinstance(self.prompt, PreparedPrompt) else 0


OpenPart = Callable[[Part], contextlib.AbstractAsyncContextManager[Exchange]]


def clamped_for_any(parts: Sequence[Part], max_context: int) -> tuple[str, ...] | None:
    """Notes of the limits that are clamped for the longest prompt, so for some part, worded as the
    engine does; None where all prompts are as long, and any part's own notes are true of all.

    Raises ContextLengthExceeded where the longest does not fit.
    """
    longest = max(part.known_length for part in parts)
    if all(part.known_length == longest for part in parts):
        return None
    room = max_context - longest
    if room < 0:
        raise ContextLengthExceeded(longest, max_context)
    options = parts[0].options
    asked = {"max_new_tokens": options.max_new_tokens or 0, "min_tokens": options.min_tokens}
    return tuple(
        f"{name} {count} was clamped to {room}, what the context has left"
        for name, count in asked.items()
        if count > room
    )


class Choices(Protocol):
    """Open generations; numbers are those of the parts that were asked for."""

    @property
    def pending(self) -> bool:
        """Whether an event can be had without waiting."""
        ...

    async def next_event(self, timeout: float | None = None) -> ChoiceEvent | None:
        """The next event and the number of its choice; None after the last.

        Raises as :meth:`Exchange.next_event`, and Overloaded when no part finds room.
        """
        ...


class OneChoice:
    """The usual case, without anything between the reader and its exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    @property
    def pending(self) -> bool:
        return self._exchange.pending

    async def next_event(self, timeout: float | None = None) -> ChoiceEvent | None:
        event = await self._exchange.next_event(timeout)
        return None if event is None else (0, event)


class ManyChoices:
    """Several parts, at most ``width`` of them with the engine at a time.

    A part that finds no room waits for another one of the same request, so that a request for many
    choices never overflows the engine's queue by itself. The last one left tries again for a while
    once any was taken: what the others said would be lost with it.
    """

    def __init__(self, parts: Sequence[Part], width: int, open_part: OpenPart) -> None:
        self._waiting = deque(enumerate(parts))
        self._open = open_part
        self._unread: defaultdict[int, deque[GenerationEvent]] = defaultdict(deque)
        self._turns: deque[int] = deque()
        self._ends: deque[Exception | None] = deque()
        self._arrived = Bell()
        self._error: Exception | None = None
        self._taken = False
        self._refused_since: float | None = None
        self._active = min(width, len(parts))
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._active)]

    @property
    def pending(self) -> bool:
        return bool(self._turns or self._ends)

    async def next_event(self, timeout: float | None = None) -> ChoiceEvent | None:
        if not self.pending:
            await self._arrived.wait(timeout)
        if self._error is not None:
            raise self._error
        if self._turns:
            return self._next_turn()
        end = self._ends.popleft()
        if end is not None:
            raise end
        return None

    def end(self, error: Exception) -> None:
        """Cancel everything; the reader sees ``error`` in place of what it has not read yet."""
        self._error = error
        self._stop()
        self._end(None)

    async def close(self) -> None:
        """Cancel what still runs and let go of it."""
        self._stop()
        self._arrived.close()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def _stop(self) -> None:
        self._waiting.clear()
        for worker in self._workers:
            worker.cancel()

    def _next_turn(self) -> ChoiceEvent:
        """Choices take turns; what waits of one is joined when its turn comes."""
        number = self._turns.popleft()
        unread = self._unread[number]
        event: GenerationEvent = take_joined(unread)
        if unread:
            self._turns.append(number)
        return number, event

    def _put(self, number: int, event: GenerationEvent) -> None:
        unread = self._unread[number]
        if not unread:
            self._turns.append(number)
        unread.append(event)
        self._arrived.ring()

    def _end(self, end: Exception | None) -> None:
        """What the reader sees when it has read everything: an error, or the end."""
        self._ends.append(end)
        self._arrived.ring()

    async def _work(self) -> None:
        while self._waiting:
            number, part = self._waiting.popleft()
            try:
                async with self._open(part) as exchange:
                    self._taken, self._refused_since = True, None
                    async for event in exchange:
                        self._put(number, event)
            except Overloaded as error:
                if self._active > 1:
                    self._waiting.appendleft((number, part))
                    break
                if not self._may_try_again():
                    self._end(error)
                    break
                self._waiting.appendleft((number, part))
                await asyncio.sleep(PAUSE)
            except Exception as error:
                self._end(error)
                break
        self._active -= 1
        if self._active == 0:
            self._end(None)

    def _may_try_again(self) -> bool:
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        return self._taken and now - self._refused_since < PATIENCE
