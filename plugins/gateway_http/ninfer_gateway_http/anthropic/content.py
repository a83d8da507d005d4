"""Messages made of blocks, as messages in the shape that chat templates read."""

from __future__ import annotations

from typing import Any, Final

from ninfer_core.contract.errors import Unsupported
from ninfer_core.contract.requests import CacheMarker
from ninfer_core.inputs.fields import Field
from ninfer_gateway_http.anthropic.calls import OpenCalls
from ninfer_gateway_http.anthropic.reading import Notes, text_part
from ninfer_gateway_http.anthropic.schema import CountRequest
from ninfer_gateway_http.anthropic.thinking import thought_of

JsonDict = dict[str, Any]
BILLING_HEADER: Final = "x-anthropic-billing-header:"
"""How a system block begins that is meant for another server's accounts, not for a model."""

_PARAGRAPH: Final = "\n\n"
_ERROR: Final = "Error: "
_BLOCKS: Final = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}


class Conversation:
    """The messages of one request.

    ``system`` comes first; its blocks are paragraphs, while other text blocks follow each other as
    they stand. A user message becomes one tool message for each result and a user message for the
    text between them. Consecutive assistant messages are one; text before a call stays before it,
    text behind a call joins it. ``prefilled`` says that the last message is the beginning of the
    answer. Raises InvalidPrompt, or Unsupported for blocks that are not served.
    """

    def __init__(self, request: CountRequest, notes: Notes) -> None:
        self.messages: list[JsonDict] = []
        self._notes = notes
        self._calls = OpenCalls()
        self._empty: Field | None = None
        if request.system is not None:
            self._system(Field(request.system, "system"))
        root = Field(request.messages, "messages")
        if not root.value:
            root.fail("is empty; give at least one message")
        for field in root.children():
            self._message(field)
        self._calls.end()
        if self._empty is not None:
            self._empty.fail("is empty; give at least one block")
        self.prefilled = request.messages[-1]["role"] == "assistant"
        if self.prefilled:
            self._check_prefill(root.children()[-1])
        if self.messages:
            notes.mark_end(Field(request.cache_control, "cache_control"), self._end())

    def _end(self) -> CacheMarker:
        content = self.messages[-1].get("content")
        part = len(content) - 1 if isinstance(content, list) and content else None
        return CacheMarker(message=len(self.messages) - 1, part=part)

    def _message(self, field: Field) -> None:
        self._notes.check_keys(field, ("role", "content"), "messages")
        role = field.child("role").need(str)
        if role not in _BLOCKS:
            field.child("role").fail(f"is {role!r}; it must be one of {', '.join(_BLOCKS)}")
        content = field.child("content")
        if not isinstance(content.value, str | list):
            content.need(list, "text or a list of blocks")
        if content.value == [] and role != "assistant":
            self._empty = self._empty or content
        if role == "system":
            self._system(content)
            return
        self._calls.turn(role)
        if role == "assistant":
            self._assistant(content)
        elif isinstance(content.value, str):
            self.messages.append({"role": "user", "content": content.value})
        else:
            self._user(content)

    def _system(self, content: Field) -> None:
        if isinstance(content.value, str):
            self.messages.append({"role": "system", "content": content.value})
            return
        parts: list[JsonDict] = []
        for block in content.children():
            _kind(block, "system")
            part = text_part(block, self._notes)
            if part["text"].lower().startswith(BILLING_HEADER):
                continue
            if parts:
                parts.append({"type": "text", "text": _PARAGRAPH})
            parts.append(part)
            self._mark(block, len(self.messages), len(parts) - 1)
        if parts:
            self.messages.append({"role": "system", "content": parts})

    def _user(self, content: Field) -> None:
        parts: list[JsonDict] = []
        for block in content.children():
            if _kind(block, "user") == "text":
                parts.append(text_part(block, self._notes))
                self._mark(block, len(self.messages), len(parts) - 1)
                continue
            self._say("user", parts)
            parts = []
            self._result(block)
        self._say("user", parts)

    def _say(self, role: str, parts: list[JsonDict]) -> None:
        if parts:
            self.messages.append({"role": role, "content": parts})

    def _result(self, block: Field) -> None:
        known = ("type", "tool_use_id", "content", "is_error", "cache_control")
        self._notes.check_keys(block, known, "tool_result blocks")
        place = len(self.messages)
        message = {
            "role": "tool",
            "tool_call_id": self._calls.result(block),
            "content": self._result_content(block.child("content"), place),
        }
        failed = block.child("is_error")
        if failed.value is not None and failed.need(bool):
            message["content"] = _as_error(message["content"])
        self.messages.append(message)
        self._mark(block, place, None)

    def _result_content(self, content: Field, place: int) -> str | list[JsonDict]:
        if content.value is None or isinstance(content.value, str):
            return content.value or ""
        if not isinstance(content.value, list):
            content.need(list, "text or a list of blocks")
        parts = []
        for block in content.children():
            _kind(block, "system", "a tool_result")
            parts.append(text_part(block, self._notes))
            self._mark(block, place, None)
        return parts

    def _assistant(self, content: Field) -> None:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": []})
        message = self.messages[-1]
        if isinstance(content.value, str):
            message["content"].append({"type": "text", "text": content.value})
            return
        for block in content.children():
            self._assistant_block(block, message)

    def _assistant_block(self, block: Field, message: JsonDict) -> None:
        kind, place = _kind(block, "assistant"), len(self.messages) - 1
        if kind == "text":
            message["content"].append(text_part(block, self._notes))
            self._mark(block, place, len(message["content"]) - 1)
        elif kind == "thinking":
            self._notes.check_keys(block, ("type", "thinking", "signature"), "thinking blocks")
            earlier = message.get("reasoning_content")
            thought = thought_of(block)
            message["reasoning_content"] = f"{earlier}\n{thought}" if earlier else thought
        elif kind == "redacted_thinking":
            self._notes.warn("redacted_thinking blocks cannot be read here", block.path)
        else:
            message.setdefault("tool_calls", []).append(self._call(block))
            self._mark(block, place, None)

    def _call(self, block: Field) -> JsonDict:
        known = ("type", "id", "name", "input", "cache_control")
        self._notes.check_keys(block, known, "tool_use blocks")
        function = {
            "name": block.child("name").need(str),
            "arguments": block.child("input").need(dict),
        }
        return {"id": self._calls.call(block), "type": "function", "function": function}

    def _mark(self, block: Field, message: int, part: int | None) -> None:
        self._notes.mark(block, CacheMarker(message=message, part=part))

    def _check_prefill(self, field: Field) -> None:
        parts = self.messages[-1]["content"]
        if parts and parts[-1]["text"] != parts[-1]["text"].rstrip():
            field.child("content").fail(
                "ends in white space, which an answer cannot go on from", "take it off"
            )


def _kind(block: Field, role: str, where: str = "") -> str:
    kind: str = block.need(dict).get("type")
    if kind not in _BLOCKS[role]:
        known = ", ".join(_BLOCKS[role])
        where = where or f"{'an' if role == 'assistant' else 'a'} {role} message"
        raise Unsupported(
            f"{block.path}.type is {kind!r}; {where} is read here with blocks of type {known}",
            param=f"{block.path}.type",
            hint="leave the block out",
        )
    return kind


def _as_error(content: str | list[JsonDict]) -> str | list[JsonDict]:
    """Templates have no place for a failed call, so the text says it."""
    if isinstance(content, str):
        return _ERROR + content
    return [{"type": "text", "text": _ERROR}, *content]
