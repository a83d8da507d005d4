"""What the OpenAPI page says of the replies in this dialect."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel

from ninfer_gateway_http.documents import Document, TimingsBlock


class ErrorEntry(Document):
    """``details`` have the stable ``error_code`` and, as ``param``, the field of the request."""

    type: str
    message: str
    details: dict[str, Any]


class ErrorEnvelope(Document):
    """Any failure, as a body or as the ``error`` event of a stream."""

    type: Literal["error"]
    error: ErrorEntry
    request_id: str | None


class MessageUsage(Document):
    """The prompt is the sum of its three parts; nothing is charged for what is kept."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageReply(Document):
    """A whole answer. With ``stream`` it comes as `text/event-stream` instead."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage
    timings: TimingsBlock
    warnings: list[str] | None = None


class TokenCount(Document):
    """All tokens of the prompt, cached or not."""

    input_tokens: int


_ERRORS: Final = {
    400: "The request is wrong; `param` names the field.",
    401: "No valid API key.",
    404: "No such path.",
    405: "The path has other methods.",
    413: "The body is too large.",
    429: "Not given by these routes, which answer 529.",
    500: "A fault of the server.",
    503: "The engine is not available.",
    504: "The request waited too long, or its deadline passed.",
    529: "The queue is full; try again after `Retry-After` seconds.",
}
_Replies = dict[int | str, dict[str, Any]]


def replies_of(model: type[BaseModel], *, streams: bool = False) -> _Replies:
    """The replies of a route that answers with ``model`` or, streaming, with events."""
    whole: dict[str, Any] = {"model": model}
    if streams:
        example = 'event: message_stop\ndata: {"type": "message_stop"}\n\n'
        events = {"schema": {"type": "string"}, "example": example}
        whole["content"] = {"text/event-stream": events}
    failed: _Replies = {
        status: {"model": ErrorEnvelope, "description": text} for status, text in _ERRORS.items()
    }
    return {
        200: whole,
        **failed,
        "default": {"model": ErrorEnvelope, "description": "A failure."},
    }
