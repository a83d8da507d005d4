"""A caller's messages as the plain values that a chat template reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ninfer_core.contract.errors import InvalidPrompt, Unsupported
from ninfer_core.contract.requests import MEDIA_PARTS, ROLES

Message = dict[str, Any]

SYSTEM_ROLES = ("system", "developer")
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_MEDIA_KEYS = frozenset({"image", "image_url", "video", "video_url"})
PARAGRAPH = "\n\n"


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Check and copy ``messages``, one for one.

    ``developer`` becomes ``system``; absent values are left out, as `transformers` does; any
    spelling of reasoning is also found under ``reasoning_content``; tool-call arguments given as
    JSON text become objects. Raises InvalidPrompt or Unsupported naming the field.
    """
    if not messages:
        raise InvalidPrompt("messages is empty; give at least one", param="messages")
    return [_read_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def merge_leading_systems(messages: Sequence[Message]) -> list[Message]:
    """Join the system messages that the conversation begins with into one, by blank lines."""
    count = leading_systems(messages)
    if count < 2:
        return list(messages)
    joined = dict(messages[0])
    joined["content"] = _joined([message.get("content", "") for message in messages[:count]])
    return [joined, *messages[count:]]


def leading_systems(messages: Sequence[Message]) -> int:
    """How many system messages stand at the beginning."""
    roles = [message["role"] for message in messages]
    return next((i for i, role in enumerate(roles) if role != "system"), len(roles))


def later_systems_as_user(messages: Sequence[Message]) -> list[Message]:
    """Turn system messages after the first message into user messages at the same place."""
    return [
        {**message, "role": "user"} if index and message["role"] == "system" else message
        for index, message in enumerate(messages)
    ]


def plain(value: Any, field: str) -> Any:
    """A copy made of JSON types alone, so that a template meets no object with methods."""
    try:
        return _plain(value, field)
    except RecursionError:
        raise InvalidPrompt(
            f"{field} is nested too deeply", param=field, hint="send flatter values"
        ) from None


def _plain(value: Any, field: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, field) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item, field) for item in value]
    raise InvalidPrompt(f"{field} holds a {type(value).__name__}; give JSON values", param=field)


def _read_message(message: Mapping[str, Any], field: str) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidPrompt(f"{field} must be an object with role and content", param=field)
    copy = {key: value for key, value in plain(message, field).items() if value is not None}
    role = copy.get("role")
    if role not in ROLES:
        raise InvalidPrompt(
            f"{field}.role is {role!r}; it must be one of {', '.join(ROLES)}", param=f"{field}.role"
        )
    copy["role"] = "system" if role in SYSTEM_ROLES else role
    _check_content(copy.get("content"), f"{field}.content")
    _alias_reasoning(copy, field)
    if "tool_calls" in copy:
        copy["tool_calls"] = _read_calls(copy["tool_calls"], f"{field}.tool_calls")
    return copy


def _check_content(content: Any, field: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise InvalidPrompt(f"{field} must be text or a list of parts", param=field)
    for index, part in enumerate(content):
        _check_part(part, f"{field}[{index}]")


def _check_part(part: Any, field: str) -> None:
    if not isinstance(part, dict):
        raise InvalidPrompt(f"{field} must be an object with type and text", param=field)
    kind = part.get("type", "text")
    if kind in MEDIA_PARTS or _MEDIA_KEYS & part.keys():
        raise Unsupported(
            f"{field} is a part of type {kind!r}; this model is served with text only",
            param=field,
            hint="leave it out",
        )
    if not isinstance(part.get("text"), str):
        raise InvalidPrompt(
            f"{field} of type {kind!r} has no text", param=field, hint="give it one as a string"
        )


def _alias_reasoning(message: Message, field: str) -> None:
    spellings = [name for name in REASONING_FIELDS if name in message]
    for name in spellings:
        if not isinstance(message[name], str):
            raise InvalidPrompt(f"{field}.{name} must be text", param=f"{field}.{name}")
        if message[name] != message[spellings[0]]:
            raise InvalidPrompt(
                f"{field}.{name} differs from {spellings[0]}",
                param=f"{field}.{name}",
                hint="give one of them",
            )
    if spellings:
        message["reasoning_content"] = message[spellings[0]]


def _read_calls(calls: Any, field: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InvalidPrompt(f"{field} must be a list", param=field)
    return [_read_call(call, f"{field}[{index}]") for index, call in enumerate(calls)]


def _read_call(call: Any, field: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise InvalidPrompt(f"{field} must be an object with a function", param=field)
    if "function" in call:
        function = call["function"]
        if not isinstance(function, dict):
            raise InvalidPrompt(
                f"{field}.function must be an object with name and arguments",
                param=f"{field}.function",
            )
        return {**call, "function": _read_function(function, f"{field}.function")}
    return _read_function(call, field)


def _read_function(function: dict[str, Any], field: str) -> dict[str, Any]:
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise InvalidPrompt(f"{field}.name must be the function's name", param=f"{field}.name")
    arguments = _read_arguments(function.get("arguments"), f"{field}.arguments")
    return {**function, "arguments": arguments}


def _read_arguments(arguments: Any, field: str) -> dict[str, Any]:
    """Templates iterate over a mapping, while clients send it encoded as JSON text."""
    decoded = arguments
    if isinstance(arguments, str):
        decoded = _decoded(arguments, field) if arguments.strip() else {}
    if decoded is None:
        return {}
    if not isinstance(decoded, dict):
        raise InvalidPrompt(f"{field} must be a JSON object", param=field)
    return decoded


def _decoded(text: str, field: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidPrompt(
            f"{field} is not valid JSON: {error}", param=field, hint="send an object as JSON text"
        ) from error


def _joined(contents: Sequence[Any]) -> Any:
    """Contents one after the other with blank lines between; text if all of them are."""
    given = [content for content in contents if content]
    if all(isinstance(content, str) for content in given):
        return PARAGRAPH.join(given)
    parts: list[Any] = []
    for content in given:
        if parts:
            parts.append({"type": "text", "text": PARAGRAPH})
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts
