"""A whole prompt from one JSON document."""

from __future__ import annotations

from typing import Any

from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.requests import CacheRequest, ChatOptions, PromptInput
from ninfer_core.inputs.fields import Field
from ninfer_core.inputs.messages import parse_messages
from ninfer_core.inputs.response_format import parse_response_format
from ninfer_core.inputs.tools import parse_tool_choice, parse_tools

PROMPT_FIELDS = ("messages", "tools", "tool_choice", "parallel_tool_calls", "response_format")
"""What an object may hold that stands for a prompt."""


def parse_prompt(
    document: Any,
    *,
    chat: ChatOptions | None = None,
    cache: CacheRequest | None = None,
    field: str = "prompt",
) -> PromptInput:
    """A list of messages, or an object with ``messages`` and optionally the fields about tools.

    Raises what the parsers of the fields raise, and InvalidRequest for an unknown field.
    """
    if isinstance(document, list):
        document = {"messages": document}
    root = Field(document, field, InvalidRequest)
    for name in root.need(dict, "a list of messages or an object with messages"):
        if name not in PROMPT_FIELDS:
            root.child(name).fail("is unknown", f"known: {', '.join(PROMPT_FIELDS)}")
    tools = parse_tools(document.get("tools"))
    parallel = document.get("parallel_tool_calls")
    if parallel is not None:
        Field(parallel, "parallel_tool_calls", InvalidRequest).need(bool)
    return PromptInput(
        messages=parse_messages(document.get("messages")),
        tools=tools,
        tool_choice=parse_tool_choice(
            document.get("tool_choice"), tools, parallel=parallel is not False
        ),
        response_format=parse_response_format(document.get("response_format")),
        chat=chat or ChatOptions(),
        cache=cache or CacheRequest(),
    )
