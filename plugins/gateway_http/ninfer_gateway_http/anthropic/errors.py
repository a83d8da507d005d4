"""Failures in the Anthropic envelope."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import Scope

from ninfer_core.contract.errors import RequestError
from ninfer_gateway_http.errors import ErrorReply

PREFIX: Final = "/v1/messages"
_STATUS: Final = {
    "server_overloaded": 529,
    "request_queue_timeout": 504,
    "request_deadline_exceeded": 504,
}
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_RETRY_AFTER: Final = {503: "5", 529: "1"}
_SPELLINGS: Final = (
    (re.compile(r"\bchat\.thinking\b"), "thinking"),
    (re.compile(r"\bchat\.effort\b"), "output_config.effort"),
    (re.compile(r"\bchat\.continue_final\b"), "a final assistant message"),
    (re.compile(r"^stop$|\bstop(?= cannot be combined)"), "stop_sequences"),
    (re.compile(r"\bmax_new_tokens\b"), "max_tokens"),
    (re.compile(r"\bthinking_budget\b"), "thinking.budget_tokens"),
    (re.compile(r"(tools\[\d+\])\.function\.parameters\b"), r"\1.input_schema"),
    (re.compile(r"(tools\[\d+\]|tool_choice)\.function\b"), r"\1"),
    (re.compile(r"\bresponse_format(\.json_schema)?\b"), "output_config.format"),
)


def spelled(text: str) -> str:
    """``text`` with the contract's field names as a message request spells them."""
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    return text


@contextlib.contextmanager
def own_names() -> Iterator[None]:
    """Lets errors of requests out with the field names of a message request."""
    try:
        yield
    except RequestError as error:
        error.message = spelled(error.message)
        error.param = error.param and spelled(error.param)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeReply(ErrorReply):
    """A failure as Anthropic's clients read it; details have the code and the field's name."""

    request_id: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        retry = _RETRY_AFTER.get(self.status)
        return {"retry-after": retry} if retry else {}

    def body(self) -> dict[str, Any]:
        default = "api_error" if self.status >= 500 else "invalid_request_error"
        said = super(EnvelopeReply, self).body()["error"]
        details = {"error_code": self.code, "param": said["param"], **self.extra}
        error = {
            "type": _TYPES.get(self.status, default),
            "message": said["message"],
            "details": {name: value for name, value in details.items() if value is not None},
        }
        return {"type": "error", "error": error, "request_id": self.request_id}


def _message(reply: ErrorReply) -> str:
    """Agents look for these very words to know that they should shorten a conversation."""
    if reply.code == "context_length_exceeded":
        counts = f"{reply.extra['prompt_tokens']} tokens > {reply.extra['max_context']} maximum"
        return f"prompt is too long: {counts}"
    return reply.message


def in_dialect(reply: ErrorReply, scope: Scope) -> ErrorReply:
    """``reply`` in the form that callers of the requested path read."""
    path = scope["path"]
    if path != PREFIX and not path.startswith(f"{PREFIX}/"):
        return reply
    return EnvelopeReply(
        status=_STATUS.get(reply.code or "", reply.status),
        message=_message(reply),
        code=reply.code,
        param=reply.param,
        extra=reply.extra,
        request_id=scope.get("request_id"),
    )
