"""Rules that hold for every route: number of headers, API key, size and time of the body."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Iterator, Sequence
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ninfer_gateway_http.anthropic.errors import in_dialect
from ninfer_gateway_http.errors import ErrorReply
from ninfer_gateway_http.page import Page

OPEN_PATHS: Final = frozenset({"/health"})
MAX_HEADERS: Final = 128
MAX_HEAD_BYTES: Final = 64 << 10
"""Path and headers together."""


async def send_reply(reply: ErrorReply, send: Send, *headers: tuple[bytes, bytes]) -> None:
    """Answer with ``reply``, which is in its caller's dialect."""
    body = json.dumps(reply.body()).encode()
    described = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    start = {"type": "http.response.start", "status": reply.status}
    await send({**start, "headers": [*described, *headers]})
    await send({"type": "http.response.body", "body": body})


class HeaderLimit:
    """Refuses heads with too many headers or bytes; one that does not end is the connection's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = _too_much(scope) if scope["type"] == "http" else None
        if problem is not None:
            refusal = ErrorReply(status=431, message=problem, code="headers_too_large")
            await send_reply(in_dialect(refusal, scope), send)
            return
        await self._app(scope, receive, send)


ASKED_METHOD: Final = "asked_method"
"""Where a scope whose method was rewritten has the one that was asked with."""


class HeadAsGet:
    """Answers HEAD as GET; the server leaves out the body. The rules outside learn of the route."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") != "HEAD":
            await self._app(scope, receive, send)
            return
        got = {**scope, "method": "GET", ASKED_METHOD: "HEAD"}
        try:
            await self._app(got, receive, send)
        finally:
            if "route" in got:
                scope["route"] = got["route"]


def _too_much(scope: Scope) -> str | None:
    headers = scope["headers"]
    size = sum(len(name) + len(value) + len(b": \r\n") for name, value in headers)
    size += len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if size > MAX_HEAD_BYTES:
        return f"the request's head has {size} bytes; at most {MAX_HEAD_BYTES} are taken"
    if len(headers) > MAX_HEADERS:
        return f"the request has {len(headers)} headers; at most {MAX_HEADERS} are taken"
    return None


class ApiKey:
    """Lets nobody in without one of ``keys``, as bearer token or ``x-api-key``; /health is open.

    Who asks for the chat page gets it with the refusal: it says nothing of the server, and has a
    field for the key. Digests are compared, so that no time tells of a key or of its length.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], door: Page) -> None:
        self._app = app
        self._door = door
        self._digests = tuple(_digest(key.encode()) for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._known(scope):
            await self._app(scope, receive, send)
            return
        if scope["path"] == "/" and scope["method"] == "GET":
            headers = {**self._door.headers, "www-authenticate": "Bearer"}
            await Response(self._door.body, 401, headers)(scope, receive, send)
            return
        refusal = ErrorReply(
            status=401,
            message="no valid API key; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
            code="invalid_api_key",
        )
        await send_reply(in_dialect(refusal, scope), send, (b"www-authenticate", b"Bearer"))

    def _known(self, scope: Scope) -> bool:
        given = [_digest(token) for token in _tokens(scope)]
        matches = [hmac.compare_digest(one, key) for one in given for key in self._digests]
        return any(matches)


def _tokens(scope: Scope) -> Iterator[bytes]:
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            yield value.strip()
        elif name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer":
                yield token.strip()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class BodyLimit:
    """Refuses bodies of more than ``limit`` bytes, announced or not, and bodies that are not there
    after ``seconds``."""

    def __init__(self, app: ASGIApp, limit: int, seconds: float) -> None:
        self._app = app
        self._limit = limit
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        # Before anything is read: a client that expects 100-continue need not send it at all.
        if int(announced) > self._limit:
            await send_reply(in_dialect(self._too_large(), scope), send)
            return
        await self._app(scope, self._limited(receive), send)

    def _limited(self, receive: Receive) -> Receive:
        deadline = time.monotonic() + self._seconds
        taken = 0
        more = True

        async def receive_within_limits() -> Message:
            nonlocal taken, more
            if not more:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise HTTPException(408, "the body did not arrive in time") from None
            more = bool(message.get("more_body", False))
            taken += len(message.get("body", b""))
            if taken > self._limit:
                raise HTTPException(413, self._too_large().message)
            return message

        return receive_within_limits

    def _too_large(self) -> ErrorReply:
        message = f"the body is larger than {self._limit} bytes"
        return ErrorReply(status=413, message=message, code="request_too_large")
