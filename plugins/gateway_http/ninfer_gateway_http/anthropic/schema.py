"""The bodies of ``/v1/messages`` and ``/v1/messages/count_tokens``: what acts, what is refused."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from ninfer_gateway_http.bodies import Items
from ninfer_gateway_http.extras import NeutralValues, check_extras


class CountRequest(BaseModel):
    """What makes a prompt. A field that is null counts as left out.

    ``model`` may be any label and comes back as it is. Content is text or a list of blocks:
    ``text``, ``thinking``, ``redacted_thinking``, ``tool_use`` and ``tool_result``.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    messages: Items[dict[str, Any]]
    model: str | None = None
    system: str | Items[dict[str, Any]] | None = None
    tools: Items[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    """A prompt and how to answer it. ``max_tokens`` counts the thought, too."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: Items[str] | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None


_REFUSED: Final[NeutralValues] = {
    "compaction": (),
    "container": (),
    "fallbacks": ([],),
    "inference_geo": (),
    "mcp_servers": ([],),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "thread": (),
}
_ANSWERING: Final = frozenset(MessagesRequest.model_fields) - frozenset(CountRequest.model_fields)


def check_fields(request: CountRequest, *, strict: bool) -> tuple[str, ...]:
    """Warnings about unknown fields at the top level.

    Raises Unsupported for a known one that asks for what is not served, and with ``strict``
    InvalidRequest for an unknown one. A count takes the fields of an answer, too.
    """
    given = dict(request.model_extra or {})
    counting = not isinstance(request, MessagesRequest)
    if isinstance(request, MessagesRequest):
        given["service_tier"] = request.service_tier
    labels = _ANSWERING - {"service_tier"} if counting else ()
    return check_extras(given, refused=_REFUSED, labels=labels, strict=strict)
