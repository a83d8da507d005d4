"""The identifier of each request, and the line that is logged about it."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import Counter
from typing import Any, Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ninfer_gateway_http.anthropic.errors import in_dialect
from ninfer_gateway_http.errors import error_reply
from ninfer_gateway_http.middleware import send_reply

UNANSWERED: Final = 499
"""The status in the log of a request whose peer left before an answer."""
MAX_LOGGED_BYTES: Final = 64 << 10
"""So much of a body is logged where bodies are logged at all."""

_log: Final = logging.getLogger("ninfer.http")
_REQUEST_ID: Final = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class RequestLog:
    """Gives every reply an ``x-request-id``, which Anthropic's clients read as ``request-id``, and
    writes one line, which shows the body of the request only with ``bodies``; counts it in
    ``replies`` by method, route and status.

    An unexpected error becomes a reply, too, and its traceback goes to the log.
    """

    def __init__(
        self, app: ASGIApp, *, replies: Counter[tuple[str, str, int]], bodies: bool = False
    ) -> None:
        self._app = app
        self._replies = replies
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        facts: dict[str, Any] = {}
        scope["state"] = facts
        request_id = scope["request_id"] = _request_id(scope)
        status = UNANSWERED
        began = time.monotonic()
        body = bytearray()

        async def receive_noting() -> Message:
            message = await receive()
            body.extend(message.get("body", b"")[: MAX_LOGGED_BYTES - len(body)])
            return message

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
            await self._app(scope, receive_noting if self._bodies else receive, send_with_id)
        except Exception as error:
            _log.exception("a request failed, id=%s", request_id)
            if status != UNANSWERED:
                raise
            await send_reply(in_dialect(error_reply(error), scope), send_with_id)
        finally:
            if self._bodies:
                facts["body"] = body.decode(errors="backslashreplace")
            self._replies[(*_route(scope), status)] += 1
            _write(scope, status, time.monotonic() - began, facts)


def _request_id(scope: Scope) -> str:
    given = HTTPConnection(scope).headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


def _route(scope: Scope) -> tuple[str, str]:
    """Method and route as they are declared: what callers make up must not add to the counters."""
    route = scope.get("route")
    served = "GET" if scope["method"] == "HEAD" else scope["method"]
    if route is None or served not in (getattr(route, "methods", None) or ()):
        return "other", "other"
    return scope["method"], getattr(route, "path", "other")


def _write(scope: Scope, status: int, seconds: float, facts: dict[str, Any]) -> None:
    """One line for people; programs find the same in the record's ``facts``."""
    request_id, method, path = scope["request_id"], scope["method"], scope["path"]
    said = " ".join(f"{k}={v!r}" if k == "body" else f"{k}={v}" for k, v in facts.items())
    line = f"{method} {path!r} {status} {seconds:.3f}s id={request_id} {said}"
    named = {
        "event": "request",
        "id": request_id,
        "method": method,
        "path": path,
        "status": status,
        "seconds": round(seconds, 6),
    }
    _log.info("%s", line.rstrip(), extra={"facts": named | facts})
