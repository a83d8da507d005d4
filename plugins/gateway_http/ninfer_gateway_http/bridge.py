"""A generation handle as an asynchronous stream of events."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import AsyncIterator

from ninfer_core.contract.engine import GenerationHandle
from ninfer_core.contract.events import Failed, Finished, GenerationEvent
from ninfer_gateway_http.bell import Bell
from ninfer_gateway_http.joining import take_joined


class ClientGone(Exception):
    """The peer closed its connection before the reply was complete."""


class Exchange:
    """One submitted request on the event loop.

    No thread waits: the engine's own thread wakes the loop, once for all requests of a round.
    Everything but that runs on the loop that made the exchange.
    """

    def __init__(self, handle: GenerationHandle) -> None:
        self._handle = handle
        self._items: deque[GenerationEvent | Exception | None] = deque()
        self._arrived = Bell()
        self._ended = False
        self.rings = False
        doorbell = _doorbell(asyncio.get_running_loop())
        handle.subscribe(lambda: doorbell.ring(self))

    @property
    def pending(self) -> bool:
        """Whether an event can be had without waiting."""
        return bool(self._items)

    async def next_event(self, timeout: float | None = None) -> GenerationEvent | None:
        """The next event, with what goes on with it if that is here already; None after the last.

        Raises TimeoutError after ``timeout`` seconds of silence, the error given to :meth:`end`,
        and the engine's own failure.
        """
        if not self._items:
            if self._ended:
                return None
            await self._arrived.wait(timeout)
        item: GenerationEvent | Exception | None = take_joined(self._items)
        self._ended |= item is None or isinstance(item, Exception | Finished | Failed)
        if isinstance(item, Exception):
            raise item
        return item

    async def __aiter__(self) -> AsyncIterator[GenerationEvent]:
        while (event := await self.next_event()) is not None:
            yield event

    def end(self, error: Exception) -> None:
        """Cancel; the reader sees ``error`` in place of what it has not read yet."""
        if not self._ended:
            self._ended = True
            self._items = deque([error])
            self._arrived.ring()
            self._handle.close()

    def close(self) -> None:
        """Let go of the handle. Idempotent."""
        self._ended = True
        self._arrived.close()
        self._handle.close()

    def collect(self) -> None:
        """Take what the handle has now."""
        self.rings = False  # Before looking, as the doorbell does.
        try:
            while not self._ended:
                event = self._handle.next_event(0)
                self._receive(event)
                if event is None or isinstance(event, Finished | Failed):
                    return
        except TimeoutError:
            return
        except Exception as error:
            self._receive(error)

    def _receive(self, item: GenerationEvent | Exception | None) -> None:
        self._items.append(item)
        self._arrived.ring()


class _Doorbell:
    """Wakes one loop for any number of exchanges: a wake-up that is under way serves those that
    ring meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._ringing: deque[Exchange] = deque()
        self._awaited = False

    def ring(self, exchange: Exchange) -> None:
        """From any thread; a loop that has ended has no readers left."""
        if exchange.rings:
            return
        exchange.rings = True
        self._ringing.append(exchange)
        loop = self._loop()
        if not self._awaited and loop is not None:
            self._awaited = True
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._awaited = False  # Before looking: who rings from here on wakes the loop again.
        while self._ringing:
            self._ringing.popleft().collect()


_doorbells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Doorbell] = (
    weakref.WeakKeyDictionary()
)


def _doorbell(loop: asyncio.AbstractEventLoop) -> _Doorbell:
    bell = _doorbells.get(loop)
    if bell is None:
        bell = _doorbells[loop] = _Doorbell(loop)
    return bell
