"""Failures as HTTP: status and the OpenAI error body."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ninfer_core.contract.errors import (
    ContextLengthExceeded,
    EngineFailure,
    InvalidSchema,
    RequestError,
)


class ModelNotFound(RequestError):
    """The request names a model that this server does not serve."""

    code = "model_not_found"


_STATUS: Final = {
    "model_not_found": 404,
    "server_overloaded": 429,
    "request_queue_timeout": 503,
    "service_unavailable": 503,
    "cancelled": 503,
    "request_deadline_exceeded": 504,
    "nonfinite_output": 500,
}
_TYPES: Final = {401: "authentication_error", 429: "rate_limit_error"}
_SPELLINGS: Final = {
    "chat.template_kwargs": "chat_template_kwargs",
    "chat.thinking": "enable_thinking",
    "chat.effort": "reasoning_effort",
    "chat.continue_final": "continue_final_message",
    "max_new_tokens": "max_tokens",
}
_RETRY_AFTER: Final = {429: "1", 503: "5"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply:
    """One failure, ready to be sent. ``extra`` are further members of the error object."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        retry = _RETRY_AFTER.get(self.status)
        return {"retry-after": retry} if retry else {}

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {
            "message": _printable(self.message),
            "type": _TYPES.get(self.status, kind),
            "param": self.param and _printable(self.param),
            "code": self.code,
        }
        return {"error": error | self.extra}


def error_reply(error: Exception) -> ErrorReply:
    """The reply for anything that a request can end with; an unexpected error shows no detail."""
    if isinstance(error, RequestError):
        return ErrorReply(
            status=_STATUS.get(error.code, 400),
            message=on_the_wire(str(error)),
            code=error.code,
            param=error.param and on_the_wire(error.param),
            extra=_details(error),
        )
    if isinstance(error, EngineFailure):
        return ErrorReply(status=503, message=f"the engine failed: {error}", code="engine_failure")
    return ErrorReply(status=500, message="internal error", code="internal_error")


def _details(error: RequestError) -> dict[str, Any]:
    if isinstance(error, ContextLengthExceeded):
        return {"prompt_tokens": error.prompt_tokens, "max_context": error.max_context}
    if isinstance(error, InvalidSchema):
        return {"pointer": _printable(error.pointer)}
    return {}


@contextlib.contextmanager
def spelled(names: Mapping[str, str]) -> Iterator[None]:
    """Errors from inside name fields as the request did: ``names`` maps theirs to its own."""
    try:
        yield
    except RequestError as error:
        for name in names:
            # Another field's refusal may name it, too; what has no "_" is mostly just a word.
            if "_" in name and name != error.param:
                error.message = _renamed(error.message, name, names[name])
        own = names.get(error.param or "")
        if own is not None and error.param is not None:
            error.message = _renamed(error.message, error.param, own)
            error.param = own
        raise


def _renamed(text: str, name: str, own: str) -> str:
    return re.sub(rf"\b{re.escape(name)}\b", own, text)


def on_the_wire(text: str) -> str:
    """``text`` with the contract's field names as the request spells them."""
    for name, spelling in _SPELLINGS.items():
        text = text.replace(name, spelling)
    return text


def _printable(text: str) -> str:
    """``text`` with halves of characters, which a request may name fields with, spelled out."""
    return text.encode(errors="backslashreplace").decode()
