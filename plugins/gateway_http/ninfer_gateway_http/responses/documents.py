"""What the OpenAPI page says of the Responses routes' replies."""

from __future__ import annotations

from typing import Any, Final

from ninfer_gateway_http.documents import Document, ErrorBody, TimingsBlock


class InputDetails(Document):
    """``cached_tokens`` were not read again; nothing is charged for writing the cache."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Document):
    """``reasoning_tokens`` are among the output's."""

    reasoning_tokens: int


class ResponseUsage(Document):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(Document):
    """Why a response is incomplete: ``max_output_tokens``."""

    reason: str


class ResponseError(Document):
    """Why a response failed."""

    code: str
    message: str


class ResponseObject(Document):
    """A response; ``output`` are items of the types reasoning, message and function_call."""

    id: str
    object: str
    created_at: int
    completed_at: int | None
    status: str
    background: bool
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[dict[str, Any]]
    usage: ResponseUsage | None
    timings: TimingsBlock | None = None
    warnings: list[str] | None = None


class ItemList(Document):
    """One page of items."""

    object: str
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(Document):
    """The length of a prompt."""

    object: str
    input_tokens: int


class Deleted(Document):
    """A response that is no more."""

    id: str
    object: str
    deleted: bool


_EXAMPLE: Final = "event: response.created\ndata: {…}\n\n"
_NOT_FOUND: Final = {"model": ErrorBody, "description": "No such response, or no such model."}
_FAILURE: Final = {"model": ErrorBody, "description": "A failure."}
CREATED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "model": ResponseObject,
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}},
    },
    404: _NOT_FOUND,
    "default": _FAILURE,
}


def answers(model: type[Document]) -> dict[int | str, dict[str, Any]]:
    """The replies of a route that answers with ``model``."""
    return {200: {"model": model}, 404: _NOT_FOUND, "default": _FAILURE}
