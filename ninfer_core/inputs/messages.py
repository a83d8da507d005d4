"""Chat messages in the OpenAI shape."""

from __future__ import annotations

from typing import Any

from ninfer_core.contract.errors import Unsupported
from ninfer_core.contract.requests import MEDIA_PARTS, ROLES
from ninfer_core.inputs.fields import Field

REASONING_FIELDS = ("reasoning_content", "reasoning")
_REFUSED = {"function_call": "tool_calls", "audio": "content"}


def parse_messages(messages: Any, field: str = "messages") -> list[dict[str, Any]]:
    """Check messages and give them one canonical form, one for one.

    Content becomes text or a list of ``{"type": "text", "text": …}``; ``reasoning`` is renamed to
    ``reasoning_content``; absent values are left out; keys that are not known here are kept for the
    template. Arguments of tool calls may be JSON text or an object. Raises InvalidPrompt, or
    Unsupported for a part or field that is not served, naming the field (``messages[3].role``).
    """
    root = Field(messages, field)
    if not root.need(list):
        root.fail("is empty; give at least one message")
    return [_message(entry) for entry in root.children()]


def _message(field: Field) -> dict[str, Any]:
    given = {key: value for key, value in field.need(dict).items() if value is not None}
    role = given.get("role")
    if role not in ROLES:
        field.child("role").fail(f"is {role!r}; it must be one of {', '.join(ROLES)}")
    for key, instead in _REFUSED.items():
        if key in given:
            path = f"{field.path}.{key}"
            raise Unsupported(f"{path} is not supported", param=path, hint=f"use {instead}")
    message = {key: value for key, value in given.items() if key not in REASONING_FIELDS}
    message["content"] = _content(field.child("content"), role)
    reasoning = _reasoning(field, given)
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if "tool_calls" in given:
        message["tool_calls"] = [_call(call) for call in field.child("tool_calls").children()]
    return message


def _content(field: Field, role: str) -> str | list[dict[str, str]]:
    if field.value is None:
        if role in ("assistant", "tool"):
            return ""
        field.fail(f"is missing; a {role} message needs text or a list of parts")
    if isinstance(field.value, str):
        return field.value
    if not isinstance(field.value, list):
        field.need(list, "text or a list of parts")
    return [_part(part) for part in field.children()]


def _part(field: Field) -> dict[str, str]:
    if isinstance(field.value, str):
        return {"type": "text", "text": field.value}
    given = field.need(dict)
    kind = field.child("type").need(str) if "type" in given else "text"
    if kind in MEDIA_PARTS:
        raise Unsupported(
            f"{field.path}.type is {kind!r}; this engine serves text parts only",
            param=f"{field.path}.type",
            hint="leave the part out",
        )
    if kind != "text":
        field.child("type").fail(f"is {kind!r}; it must be 'text'")
    return {"type": "text", "text": field.child("text").need(str)}


def _reasoning(field: Field, given: dict[str, Any]) -> str | None:
    """Both spellings are in use; equal values may come together, contradicting ones may not."""
    values = [field.child(name).need(str) for name in REASONING_FIELDS if name in given]
    if len(set(values)) > 1:
        field.child(REASONING_FIELDS[1]).fail(
            f"differs from {REASONING_FIELDS[0]}", "give one of them"
        )
    return values[0] if values else None


def _call(field: Field) -> dict[str, Any]:
    call = dict(field.need(dict))
    if call.get("type", "function") != "function":
        field.child("type").fail(f"is {call['type']!r}; it must be 'function'")
    function = field.child("function")
    function.need(dict)
    if not function.child("name").need(str):
        function.child("name").fail("is empty")
    arguments = function.child("arguments")
    if not isinstance(arguments.value, str | dict | None):
        arguments.need(dict, "JSON text or an object")
    return call
