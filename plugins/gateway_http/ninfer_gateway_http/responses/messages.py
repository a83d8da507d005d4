"""From items to chat messages: what one turn of the model said becomes one assistant message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ninfer_core.contract.errors import InvalidPrompt
from ninfer_gateway_http.responses.items import Item
from ninfer_gateway_http.responses.thoughts import thought_of

Message = dict[str, Any]


class Turn:
    """An assistant message that grows: thought, then text and calls in any order."""

    def __init__(self) -> None:
        self._thought: list[str] = []
        self._text: list[str] = []
        self._calls: list[Item] = []
        self._last = ""

    def takes(self, kind: str) -> bool:
        """Whether an item of ``kind`` still belongs to this turn.

        A thought opens a turn, and two messages without a call between them are two turns.
        """
        if kind == "reasoning":
            return not (self._text or self._calls)
        return not (kind == self._last == "message")

    def add(self, item: Item) -> None:
        self._last = item["type"]
        match item["type"]:
            case "reasoning":
                self._thought.append(thought_of(item))
            case "message":
                self._text.append(text_of(item["content"]))
            case "function_call":
                self._calls.append(item)

    def message(self) -> Message | None:
        """None for a turn that says nothing. A call that was cut is left out: its arguments are no
        JSON, and nobody can answer it."""
        calls = [_tool_call(call) for call in self._calls if call["status"] == "completed"]
        thought, text = "".join(self._thought), "".join(self._text)
        if not (calls or text or thought):
            return None
        message: Message = {"role": "assistant", "content": text}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        return message


class Transcript:
    """Messages of a conversation, put together item by item."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._turn = Turn()
        self._called: set[str] = set()

    def add(self, item: Item, index: int | None = None) -> None:
        """``index`` is the item's place in ``input``. Raises InvalidPrompt when an output answers
        no call."""
        kind = item["type"]
        if kind in ("reasoning", "function_call") or item.get("role") == "assistant":
            if not self._turn.takes(kind):
                self._end_turn()
            self._turn.add(item)
            if kind == "function_call":
                self._called.add(item["call_id"])
        else:
            self._end_turn()
            self._messages.append(self._said(item, index))

    def messages(self) -> list[Message]:
        self._end_turn()
        return self._messages

    def _end_turn(self) -> None:
        message = self._turn.message()
        if message is not None:
            self._messages.append(message)
        self._turn = Turn()

    def _said(self, item: Item, index: int | None) -> Message:
        if item["type"] == "message":
            return {"role": item["role"], "content": text_of(item["content"])}
        call_id = item["call_id"]
        if call_id not in self._called:
            path = f"input[{index}].call_id"
            raise InvalidPrompt(
                f"{path} is {call_id!r}, but no function call before it has that id",
                param=path,
                hint="send the function_call item too, or previous_response_id",
            )
        return {"role": "tool", "tool_call_id": call_id, "content": text_of(item["output"])}


def to_messages(history: Iterable[Item], items: Sequence[Item]) -> list[Message]:
    """Messages of a conversation whose new items are ``items``. Raises InvalidPrompt."""
    transcript = Transcript()
    for item in history:
        transcript.add(item)
    for index, item in enumerate(items):
        transcript.add(item, index)
    return transcript.messages()


def text_of(parts: str | list[Item]) -> str:
    return parts if isinstance(parts, str) else "".join(part["text"] for part in parts)


def _tool_call(item: Item) -> Message:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}
