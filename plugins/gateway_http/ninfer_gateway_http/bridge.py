"""A blocking generation handle as an asynchronous stream of events."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator

from ninfer_core.contract.engine import GenerationHandle
from ninfer_core.contract.events import Failed, Finished, GenerationEvent


class ClientGone(Exception):
    """The peer closed its connection before the reply was complete."""


class Exchange:
    """One submitted request on the event loop.

    One thread waits on the handle for as long as the request lives and hands each event over; no
    thread is used per token. Everything but that thread runs on the loop that made the exchange.
    """

    def __init__(self, handle: GenerationHandle) -> None:
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._items: deque[GenerationEvent | Exception | None] = deque()
        self._arrived = asyncio.Event()
        self._ended = False
        name = f"ninfer-http-{handle.request_id}"
        threading.Thread(target=self._pump, name=name, daemon=True).start()

    async def next_event(self, timeout: float | None = None) -> GenerationEvent | None:
        """The next event; None after the last.

        Raises TimeoutError after ``timeout`` seconds of silence, the error given to :meth:`end`,
        and the engine's own failure.
        """
        if not self._items:
            if self._ended:
                return None
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), timeout)
        item = self._items.popleft()
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
            self._arrived.set()
            self._handle.close()

    def close(self) -> None:
        """Let go of the handle. Idempotent."""
        self._ended = True
        self._handle.close()

    def _pump(self) -> None:
        last: Exception | None = None
        try:
            for event in self._handle:
                self._post(event)
        except Exception as error:
            last = error
        self._post(last)

    def _post(self, item: GenerationEvent | Exception | None) -> None:
        """From the pump thread; a loop that has ended has no readers left."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._receive, item)

    def _receive(self, item: GenerationEvent | Exception | None) -> None:
        if not self._ended:
            self._items.append(item)
            self._arrived.set()
