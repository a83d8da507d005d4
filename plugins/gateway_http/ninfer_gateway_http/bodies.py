"""Bodies of requests on their way from bytes to values: no more of them than a request can need,
because other requests wait while they are made."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final, TypeVar

from fastapi.routing import APIRoute
from pydantic import BeforeValidator, FailFast
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

MOST_VALUES: Final = 1 << 20
"""In one body, whatever they are nested in. The ids of a prompt for the longest context are fewer.
"""
MOST_ENTRIES: Final = 1024
"""Of what a request has few of."""
_COUNTED: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]', re.DOTALL)
MOST_AT_ONCE: Final = 256
"""Things that are gone through while other requests wait."""
_QUOTE: Final = ord('"')

T = TypeVar("T")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class _FirstOnly(FailFast):
    """Can be a part of a union, which wants a hash."""

    def __hash__(self) -> int:
        return hash(_FirstOnly)


Items = Annotated[list[T], _FirstOnly()]
"""A list in a body: of the wrong ones among its items the first is enough to refuse it."""


def at_most(count: int) -> BeforeValidator:
    """Refuses a list or an object with more entries before any of them is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > count:
            said = "it has {given} entries; at most {most}"
            raise PydanticCustomError("too_many", said, {"given": len(value), "most": count})
        return value

    return BeforeValidator(check)


class BodyRoute(APIRoute):
    """A route whose bodies are read by :func:`read_json`."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return bounded


class _Request(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = await read_json(await self.body())
        return self._json


async def apart(size: int, work: Callable[[], T]) -> T:
    """What ``work`` returns, on a thread of its own if it goes through ``size`` things and these
    are many."""
    return work() if size <= MOST_AT_ONCE else await asyncio.to_thread(work)


async def read_json(body: bytes) -> Any:
    """The value of ``body``. Raises what ``json.loads`` raises, and HTTPException with status 413
    for more than :data:`MOST_VALUES` values."""
    marks = sum(map(body.count, (b",", b"[", b"{")))
    if marks > MOST_VALUES and await asyncio.to_thread(_has_more, body, MOST_VALUES):
        raise HTTPException(413, f"the body holds more than {MOST_VALUES} values")
    return json.loads(body)


def _has_more(body: bytes, most: int) -> bool:
    """Whether more commas, brackets and braces than ``most`` stand outside of texts."""
    count = 0
    for match in _COUNTED.finditer(body):
        if body[match.start()] != _QUOTE:
            count += 1
            if count > most:
                return True
    return False
