"""Bodies of requests on their way from bytes to values: no more of them than a request can need,
because other requests wait while they are made."""

from __future__ import annotations

import json
import json.scanner
import re
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any, Final, TypeVar

from fastapi.routing import APIRoute
from pydantic import BeforeValidator, FailFast
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ninfer_core.contract.errors import Overloaded
from ninfer_gateway_http.bridge import ClientGone
from ninfer_gateway_http.presence import for_peer, watched
from ninfer_gateway_http.threads import at_length

MOST_VALUES: Final = 1 << 20
"""In one body, whatever they are nested in. The ids of a prompt for the longest context are fewer.
"""
MOST_CONTAINERS: Final = 1 << 16
"""Objects and lists in one body: each costs as much as many ids. A thousand tools of twenty
parameters have fewer."""
MOST_ENTRIES: Final = 1024
"""Of what a request has few of."""
AT_ONCE_BYTES: Final = 1 << 14
"""What is gone through while other requests wait comes from no more of a body than this."""
_STEP: Final = 1 << 20
STEP_VALUES: Final = 1 << 17
"""More than these, an object or list for sixteen of them, are read in steps."""
_COUNTED: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[\]{}]', re.DOTALL)
_MOST_DEPTH: Final = 1000
"""Neither decoder gets as far."""
_CONTAINER_COST: Final = 15
"""In other values."""
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


class BodyProblem(HTTPException):
    """What is wrong with a body before it is a value; ``param`` is the field, if it is known."""

    def __init__(self, status: int, detail: str, param: str | None = None) -> None:
        super().__init__(status, detail)
        self.param = param


def _too_long(body: bytes) -> BodyProblem:
    """Python reads no whole number of more digits than its limit."""
    most = sys.get_int_max_str_digits()
    found = re.search(rb'"([^"\\]{1,64})"\s{0,64}:\s{0,64}-?\d{%d}' % (most + 1), body)
    param = found[1].decode(errors="replace") if found else None
    return BodyProblem(400, f"{param or 'the body'} has a number of more than {most} digits", param)


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
            coding = self.headers.get("content-encoding", "identity").strip().lower()
            if coding not in ("", "identity"):
                said = f"content-encoding is {coding!r:.80}; send the body as it is, without one"
                raise BodyProblem(415, said)
            try:
                self._json = await self._read()
            except ValueError as error:
                if type(error) is ValueError:  # the decoder's own are of further types
                    raise _too_long(await self.body()) from None
                raise
        return self._json

    async def _read(self) -> Any:
        """What is raised while a body is read must have a status of its own, or becomes a 400."""
        body = await self.body()
        if len(body) <= AT_ONCE_BYTES:
            return json.loads(body)
        try:
            with watched(self.receive) as gone:
                return await for_peer(gone, read_json(body))
        except Overloaded as error:
            raise HTTPException(429, str(error)) from None
        except ClientGone:
            raise HTTPException(499, "the peer left") from None


async def apart(request: Request, work: Callable[[], T], *, long: bool = False) -> T:
    """What ``work`` returns, which goes through the body of ``request``: on another thread unless
    that is short and the work is not said to be ``long``.

    Raises Overloaded when too many wait there, and ClientGone when the peer leaves meanwhile.
    """
    if not long and len(await request.body()) <= AT_ONCE_BYTES:
        return work()
    with watched(request.receive) as gone:
        return await for_peer(gone, at_length(work))


async def read_json(body: bytes) -> Any:
    """The value of ``body``. Raises what ``json.loads`` raises, and HTTPException with status 413
    for more than :data:`MOST_VALUES` values or :data:`MOST_CONTAINERS` objects and lists, and
    Overloaded when too many wait to be read."""
    if len(body) <= AT_ONCE_BYTES:
        return json.loads(body)
    return await at_length(partial(_read, body))


class _InSteps(json.JSONDecoder):
    """Decodes in Python, so that other threads run in between; the library's own decoder, several
    times as fast, lets none run until it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def _read(body: bytes) -> Any:
    values, containers = _at_most(body)
    if values > MOST_VALUES or containers > MOST_CONTAINERS:
        values, containers = _counts(body)
    for count, most, of in (
        (values, MOST_VALUES, "values"),
        (containers, MOST_CONTAINERS, "objects and lists"),
    ):
        if count > most:
            raise HTTPException(413, f"the body holds more than {most} {of}")
    in_steps = values + _CONTAINER_COST * containers > STEP_VALUES
    return json.loads(body, cls=_InSteps) if in_steps else json.loads(body)


def _at_most(body: bytes) -> tuple[int, int]:
    """Commas, brackets and braces, and the latter two, also in texts; no further than needed."""
    values = containers = 0
    for start in range(0, len(body), _STEP):
        opened = sum(body.count(mark, start, start + _STEP) for mark in (b"[", b"{"))
        containers += opened
        values += opened + body.count(b",", start, start + _STEP)
        if values > MOST_VALUES and containers > MOST_CONTAINERS:
            break
    return values, containers


def _counts(body: bytes) -> tuple[int, int]:
    """As :func:`_at_most` outside of texts, up to one more than is allowed of either."""
    commas = containers = depth = 0
    for match in _COUNTED.finditer(body):
        mark = body[match.start()]
        if mark == _QUOTE:
            continue
        if mark in b"]}":
            depth -= 1
            continue
        opens = mark in b"[{"
        commas += not opens
        containers += opens
        depth += opens
        if depth > _MOST_DEPTH:
            raise RecursionError
        if commas + containers > MOST_VALUES or containers > MOST_CONTAINERS:
            break
    return commas + containers, containers
