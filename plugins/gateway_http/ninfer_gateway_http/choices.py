"""The generations of one HTTP request, as one stream of events that say which they belong to."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ninfer_core.contract.errors import Overloaded
from ninfer_core.contract.events import GenerationEvent
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_gateway_http.bridge import Exchange

ChoiceEvent = tuple[int, GenerationEvent]


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


class Choices(Protocol):
    """Open generations; numbers are those of the parts that were asked for."""

    @property
    def pending(self) -> bool:
        """Whether an event can be had without waiting."""
        ...

    @property
    def tightest(self) -> int:
        """The number of the choice with the longest prompt: what its context has left over, all
        have. It is opened before the others."""
        ...

    async def next_event(self, timeout: float | None = None) -> ChoiceEvent | None:
        """The next event and the number of its choice; None after the last.

        Raises as :meth:`Exchange.next_event`, and Overloaded when no part finds room.
        """
        ...


class OneChoice:
    """The usual case, without anything between the reader and its exchange."""

    tightest: Final = 0

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
    choices never overflows the engine's queue by itself.
    """

    def __init__(self, parts: Sequence[Part], width: int, open_part: OpenPart) -> None:
        self.tightest = max(range(len(parts)), key=lambda number: parts[number].known_length)
        first, rest = self.tightest, enumerate(parts)
        self._waiting = deque(sorted(rest, key=lambda numbered: numbered[0] != first))
        self._open = open_part
        self._items: asyncio.Queue[ChoiceEvent | Exception | None] = asyncio.Queue()
        self._error: Exception | None = None
        self._active = min(width, len(parts))
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._active)]

    @property
    def pending(self) -> bool:
        return not self._items.empty()

    async def next_event(self, timeout: float | None = None) -> ChoiceEvent | None:
        item = await asyncio.wait_for(self._items.get(), timeout)
        if self._error is not None:
            raise self._error
        if isinstance(item, Exception):
            raise item
        return item

    def end(self, error: Exception) -> None:
        """Cancel everything; the reader sees ``error`` in place of what it has not read yet."""
        self._error = error
        self._stop()
        self._items.put_nowait(None)

    async def close(self) -> None:
        """Cancel what still runs and let go of it."""
        self._stop()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def _stop(self) -> None:
        self._waiting.clear()
        for worker in self._workers:
            worker.cancel()

    async def _work(self) -> None:
        while self._waiting:
            number, part = self._waiting.popleft()
            try:
                async with self._open(part) as exchange:
                    async for event in exchange:
                        self._items.put_nowait((number, event))
            except Overloaded as error:
                if self._active == 1:
                    self._items.put_nowait(error)
                else:
                    self._waiting.appendleft((number, part))
                break
            except Exception as error:
                self._items.put_nowait(error)
                break
        self._active -= 1
        if self._active == 0:
            self._items.put_nowait(None)
