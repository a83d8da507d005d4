"""What a request that fails is answered with, in the dialect of its route."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from ninfer_core.errors import NinferError
from ninfer_gateway_http.anthropic.errors import in_dialect
from ninfer_gateway_http.bodies import BodyProblem
from ninfer_gateway_http.bridge import ClientGone
from ninfer_gateway_http.errors import ErrorReply, error_reply
from ninfer_gateway_http.middleware import ASKED_METHOD

_UNREADABLE: Final = "the body cannot be read: send JSON in UTF-8, not nested beyond reason"
_CODES: Final = {
    404: "not_found",
    405: "method_not_allowed",
    408: "request_not_received",
    413: "request_too_large",
    415: "unsupported_media_type",
    429: "server_overloaded",
}


def add_failures(app: FastAPI) -> None:
    """Let ``app`` answer with an error body whatever goes wrong in a route."""
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(ClientGone, _client_gone)
    app.add_exception_handler(NinferError, _failure)


def _send(reply: ErrorReply, request: Request) -> Response:
    reply = in_dialect(reply, request.scope)
    return JSONResponse(reply.body(), reply.status, headers=reply.headers)


async def _failure(request: Request, error: Exception) -> Response:
    return _send(error_reply(error), request)


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "invalid_request")
    known = isinstance(error, BodyProblem)
    message = str(error.detail) if known or error.status_code != 400 else _UNREADABLE
    if error.status_code in (404, 405):
        method = request.scope.get(ASKED_METHOD, request.method)
        message = f"{message}: {method} {request.scope['path'][:200]}"
    param = error.param if isinstance(error, BodyProblem) else None
    failed = ErrorReply(status=error.status_code, message=message, code=code, param=param)
    reply = _send(failed, request)
    reply.headers.update(error.headers or {})  # a 405 names the methods that are allowed
    return reply


async def _invalid_body(request: Request, error: Exception) -> Response:
    """A body that is not JSON, or a field of the wrong type: 400 with the field's name."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        message = f"the body is not valid JSON: {first.get('ctx', {}).get('error', '')}"
        return _send(ErrorReply(status=400, message=message, code="invalid_json"), request)
    param = _field(first["loc"][1:]) or None
    if param is None and "json" not in request.headers.get("content-type", ""):
        message = "the body is not taken as JSON; send the header content-type: application/json"
        return _send(ErrorReply(status=400, message=message, code="invalid_request"), request)
    message = f"{param or 'body'}: {first['msg'][0].lower()}{first['msg'][1:]}"
    return _send(
        ErrorReply(status=400, message=message, code="invalid_request", param=param), request
    )


def _field(path: Sequence[str | int]) -> str:
    """``messages[0].role`` for ("messages", 0, "role"); names of a union's types are left out."""
    places = (part for part in path if part != "str" and not str(part).endswith("]"))
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in places)
    return "".join(parts).removeprefix(".")
