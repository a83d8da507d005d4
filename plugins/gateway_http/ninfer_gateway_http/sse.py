"""Server-sent events: framing, and a response that owns what feeds it."""

from __future__ import annotations

import contextlib
import json
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"
_MOST: Final = 64
_MOST_BYTES: Final = 1 << 16
_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def event(payload: Mapping[str, Any]) -> bytes:
    """One event with ``payload`` as JSON in UTF-8."""
    return f"data: {_JSON.encode(payload)}\n\n".encode()


class Stencil:
    """An event that is sent again and again with another text in it: the rest is encoded once."""

    HOLE: Final = uuid.uuid4().hex
    """Stands for the text in the event that a stencil is made of; nobody's own text has it."""

    def __init__(self, framed: bytes) -> None:
        self._pieces = framed.decode().split(_JSON.encode(self.HOLE))

    def filled(self, text: str) -> bytes:
        """The event with ``text`` in every hole."""
        return _JSON.encode(text).join(self._pieces).encode()


async def batched(
    events: AsyncIterator[bytes],
    pending: Callable[[], bool],
    alive: bytes = KEEP_ALIVE,
    seconds: float = math.inf,
) -> AsyncIterator[bytes]:
    """``events`` in as few writes as can be without holding any back: what is ``pending`` when one
    is written goes along. Events before a failure are written before it is raised.

    One without bytes says that something came of which the peer hears nothing: after ``seconds`` of
    such a silence, ``alive`` is written.
    """
    held: list[bytes] = []
    size = 0
    written = time.monotonic()
    try:
        async for one in events:
            if one:
                held.append(one)
                size += len(one)
            elif not held and time.monotonic() - written >= seconds:
                held.append(alive)
            if held and (len(held) == _MOST or size >= _MOST_BYTES or not pending()):
                yield held[0] if len(held) == 1 else b"".join(held)
                held.clear()
                size = 0
                written = time.monotonic()
    except Exception:
        if held:
            yield b"".join(held)
        raise
    if held:
        yield b"".join(held)


class EventStream(Response):
    """Sends ``events`` as they come, then closes ``owner``.

    It does not listen for the peer's leaving: the producer does, also while it waits for tokens.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        owner: contextlib.AsyncExitStack,
        headers: Mapping[str, str],
    ) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self._owner = owner
        self.init_headers({"cache-control": "no-store", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._owner:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
