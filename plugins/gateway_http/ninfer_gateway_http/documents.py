"""What the OpenAPI page says of replies. Replies are written by hand; these are their shapes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A reply that may get further members."""

    model_config = ConfigDict(extra="allow")


class ErrorObject(Document):
    """``code`` is stable; ``param`` names the field of the request."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Document):
    """Any failure."""

    error: ErrorObject


class HealthReport(Document):
    """``status`` is ``ok`` or the engine's state; ``running`` requests are being answered."""

    status: str
    running: int
    reason: str | None = None


class ModelCard(Document):
    """The served model; ``max_model_len`` counts tokens of prompt and answer together."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Document):
    """All models, which is one."""

    object: str
    data: list[ModelCard]


class PromptTokensDetails(Document):
    """``cached_tokens`` were not read again."""

    cached_tokens: int


class CompletionTokensDetails(Document):
    """``reasoning_tokens`` are among the completion's."""

    reasoning_tokens: int


class UsageBlock(Document):
    """Token counts, added up over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TimingsBlock(Document):
    """Where the time went, added up over all choices. Milliseconds; rates in tokens per second."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float | None
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float | None
    predicted_per_second: float | None
    draft_n: int
    draft_n_accepted: int
    draft_n_by_position: list[int]
    draft_n_accepted_by_position: list[int]
    reuse_reason: str
    reuse_point: str | None
    reuse_tier: str | None
    queue_ms: float
    prepare_ms: float
    host_ms: float
    device_ms: float
    rounds: int
    pauses: int
    replays: int
    restores: int
    restored_bytes: int
    captures: int


class FunctionCall(Document):
    """``arguments`` is a JSON object as text."""

    name: str
    arguments: str


class ToolCallObject(Document):
    """One call."""

    id: str
    type: str
    function: FunctionCall


class ChatMessage(Document):
    """The answer; the thought comes under both names that clients know."""

    role: str
    content: str | None
    refusal: str | None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallObject] | None = None


class ChatChoice(Document):
    """``stop_reason`` is the stop string or token id that ended it."""

    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None
    finish_reason: str
    stop_reason: str | int | None
    token_ids: list[int] | None = None


class ChatCompletion(Document):
    """A whole answer. With ``stream`` it comes as `text/event-stream` instead."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBlock
    timings: TimingsBlock
    warnings: list[str] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None


class TextChoice(Document):
    """One completion; ``logprobs`` has the legacy shape."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str
    stop_reason: str | int | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None


class TextCompletion(Document):
    """Completions in the order of the prompts. With ``stream`` they come as events instead."""

    id: str
    object: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageBlock
    timings: TimingsBlock
    warnings: list[str] | None = None


class TokenizeReply(Document):
    """``token_strs`` only when asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeReply(Document):
    """The text of the tokens."""

    prompt: str


_ERRORS = {
    400: "The request is wrong; `param` names the field.",
    401: "No valid API key.",
    404: "No such model.",
    405: "The path has other methods.",
    413: "The body is too large.",
    429: "The queue is full; try again after `Retry-After` seconds.",
    500: "A fault of the server.",
    503: "The engine is not available, or the request waited too long.",
    504: "The request's deadline passed.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text} for status, text in _ERRORS.items()
} | {"default": {"model": ErrorBody, "description": "Any other failure."}}
"""Replies that every route may give."""


def events_or(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The replies of a route that answers with ``model`` or, streaming, with events."""
    example = {"schema": {"type": "string"}, "example": "data: {…}\n\ndata: [DONE]\n\n"}
    return {200: {"model": model, "content": {"text/event-stream": example}}}
