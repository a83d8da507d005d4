"""Rules that hold for every route: request id and log line, API key, size of the body."""

from __future__ import annotations

import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ninfer_gateway_http.anthropic.errors import in_dialect
from ninfer_gateway_http.errors import ErrorReply, error_reply

_log: Final = logging.getLogger("ninfer.http")
_REQUEST_ID: Final = re.compile(r"[\w.:-]{1,128}", re.ASCII)
OPEN_PATHS: Final = frozenset({"/health"})
UNANSWERED: Final = 499
"""The status in the log of a request whose peer left before an answer."""


class RequestLog:
    """Gives every reply an ``x-request-id``, which Anthropic's clients read as ``request-id``, and
    writes one line, which never shows a prompt.

    An unexpected error becomes a reply, too, and its traceback goes to the log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        facts: dict[str, Any] = {}
        scope["state"] = facts
        request_id = scope["request_id"] = _request_id(scope)
        status = UNANSWERED
        began = time.monotonic()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    (b"request-id", request_id.encode()),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            _log.exception("a request failed, id=%s", request_id)
            if status != UNANSWERED:
                raise
            await _send(in_dialect(error_reply(error), scope), send_with_id)
        finally:
            seconds = time.monotonic() - began
            line = f"{scope['method']} {scope['path']!r} {status} {seconds:.3f}s id={request_id}"
            _log.info("%s", " ".join([line, *(f"{k}={v}" for k, v in facts.items())]))


def _request_id(scope: Scope) -> str:
    given = HTTPConnection(scope).headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


async def _send(reply: ErrorReply, send: Send, *headers: tuple[bytes, bytes]) -> None:
    body = json.dumps(reply.body()).encode()
    described = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    start = {"type": "http.response.start", "status": reply.status}
    await send({**start, "headers": [*described, *headers]})
    await send({"type": "http.response.body", "body": body})


class ApiKey:
    """Lets nobody in without one of ``keys``, as bearer token or ``x-api-key``; /health is open."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = tuple(key.encode() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._known(scope):
            await self._app(scope, receive, send)
            return
        refusal = ErrorReply(
            status=401,
            message="no valid API key; send it as `Authorization: Bearer KEY`",
            code="invalid_api_key",
        )
        await _send(in_dialect(refusal, scope), send, (b"www-authenticate", b"Bearer"))

    def _known(self, scope: Scope) -> bool:
        headers = HTTPConnection(scope).headers
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = (token if scheme.lower() == "bearer" else headers.get("x-api-key", "")).encode()
        return any(hmac.compare_digest(given.strip(), key) for key in self._keys)


class BodyLimit:
    """Refuses bodies of more than ``limit`` bytes, announced or not."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken = 0

        async def receive_within_limit() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._limit:
                raise HTTPException(413, f"the body is larger than {self._limit} bytes")
            return message

        await self._app(scope, receive_within_limit, send)
