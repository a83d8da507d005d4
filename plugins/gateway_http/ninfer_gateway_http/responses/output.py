"""The output items of one response, grown from deltas, and the events that tell of each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ninfer_core.contract.events import Channel, Delta, ToolDelta
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_gateway_http.responses.items import Item, new_id
from ninfer_gateway_http.responses.thoughts import packed

Event = dict[str, Any]
Rows = Callable[[Sequence[TokenLogprobs]], list[Item]]
"""Log-probabilities as the wire has them."""


class _Open(ABC):
    """An item that still grows. Events lack their sequence numbers."""

    def __init__(self, item: Item, index: int) -> None:
        self.item = item
        self.index = index
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @abstractmethod
    def snapshot(self, status: str) -> Item:
        """The item as it stands."""

    def begin(self) -> Iterator[Event]:
        yield self._whole("response.output_item.added", "in_progress")

    def end(self, status: str) -> Iterator[Event]:
        yield self._whole("response.output_item.done", status)

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.item["id"], "output_index": self.index, **fields}

    def _whole(self, kind: str, status: str) -> Event:
        return {"type": kind, "output_index": self.index, "item": self.snapshot(status)}


class OpenCall(_Open):
    """A function call; its arguments come in pieces."""

    def __init__(self, tool: ToolDelta, index: int) -> None:
        item = {"type": "function_call", "id": new_id("fc"), "call_id": tool.id, "name": tool.name}
        super().__init__(item, index)
        self.call = tool.index

    def snapshot(self, status: str) -> Item:
        return self.item | {"arguments": self.text, "status": status}

    def add(self, arguments: str) -> Iterator[Event]:
        if arguments:
            self._pieces.append(arguments)
            yield self._event("response.function_call_arguments.delta", delta=arguments)

    def end(self, status: str) -> Iterator[Event]:
        kind = "response.function_call_arguments.done"
        yield self._event(kind, name=self.item["name"], arguments=self.text)
        yield from super().end(status)


class OpenThought(_Open):
    """A thought. ``pack`` adds the opaque form to the finished item."""

    def __init__(self, index: int, *, pack: bool) -> None:
        super().__init__({"type": "reasoning", "id": new_id("rs"), "summary": []}, index)
        self._pack = pack

    def snapshot(self, status: str) -> Item:
        content = [] if status == "in_progress" and not self._pieces else [self._part()]
        item = self.item | {"content": content, "status": status}
        if self._pack and status != "in_progress":
            item["encrypted_content"] = packed(self.text)
        return item

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        yield self._event("response.content_part.added", content_index=0, part=self._part())

    def add(self, text: str) -> Iterator[Event]:
        self._pieces.append(text)
        yield self._event("response.reasoning_text.delta", content_index=0, delta=text)

    def end(self, status: str) -> Iterator[Event]:
        yield self._event("response.reasoning_text.done", content_index=0, text=self.text)
        yield self._event("response.content_part.done", content_index=0, part=self._part())
        yield from super().end(status)

    def _part(self) -> Item:
        return {"type": "reasoning_text", "text": self.text}


class OpenMessage(_Open):
    """The answer's text, with the log-probabilities of its tokens when they are asked for."""

    def __init__(self, index: int) -> None:
        item = {"type": "message", "id": new_id("msg"), "role": "assistant"}
        super().__init__(item, index)
        self._logprobs: list[Item] = []

    def snapshot(self, status: str) -> Item:
        content = [] if status == "in_progress" and not self._pieces else [self._part()]
        return self.item | {"content": content, "status": status}

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        yield self._event("response.content_part.added", content_index=0, part=self._part())

    def add(self, text: str, logprobs: list[Item]) -> Iterator[Event]:
        self._pieces.append(text)
        self._logprobs += logprobs
        yield self._event(
            "response.output_text.delta", content_index=0, delta=text, logprobs=logprobs
        )

    def end(self, status: str) -> Iterator[Event]:
        kind = "response.output_text.done"
        yield self._event(kind, content_index=0, text=self.text, logprobs=list(self._logprobs))
        yield self._event("response.content_part.done", content_index=0, part=self._part())
        yield from super().end(status)

    def _part(self) -> Item:
        part = {"type": "output_text", "text": self.text, "annotations": []}
        return part | {"logprobs": list(self._logprobs)}


class Output:
    """Takes deltas in order. One item is open at a time; it ends when another begins."""

    def __init__(self, rows: Rows | None, *, pack: bool) -> None:
        self._rows = rows
        self._pack = pack
        self._done: list[Item] = []
        self._open: OpenCall | OpenThought | OpenMessage | None = None
        self._waiting: list[Item] = []

    def items(self, status: str = "incomplete") -> list[Item]:
        """The items so far; the one that is open has ``status``."""
        last = [] if self._open is None else [self._open.snapshot(status)]
        return [*self._done, *last]

    def add(self, delta: Delta) -> Iterator[Event]:
        """The events of ``delta``. Each holds the state at its time."""
        if delta.tool is not None:
            yield from self._add_tool(delta.tool)
        elif delta.channel is Channel.REASONING and delta.text:
            yield from self._add_thought(delta.text)
        elif delta.channel is Channel.CONTENT:
            yield from self._add_text(delta)

    def end(self, status: str, whole_calls: Sequence[str]) -> Iterator[Event]:
        """Close the last item with ``status``; a call is complete if ``whole_calls`` names it."""
        last = self._open
        if isinstance(last, OpenCall):
            status = "completed" if last.item["call_id"] in whole_calls else "incomplete"
        yield from self._close(status)

    def _add_text(self, delta: Delta) -> Iterator[Event]:
        """A token whose text is held back is told with the text that it leads to."""
        rows = self._waiting + (self._rows(delta.logprobs) if self._rows else [])
        if not delta.text:
            self._waiting = rows
            return
        self._waiting = []
        message = self._open
        if not isinstance(message, OpenMessage):
            yield from self._close("completed")
            self._open = message = OpenMessage(len(self._done))
            yield from message.begin()
        yield from message.add(delta.text, rows)

    def _add_thought(self, text: str) -> Iterator[Event]:
        thought = self._open
        if not isinstance(thought, OpenThought):
            yield from self._close("completed")
            self._open = thought = OpenThought(len(self._done), pack=self._pack)
            yield from thought.begin()
        yield from thought.add(text)

    def _add_tool(self, tool: ToolDelta) -> Iterator[Event]:
        call = self._open
        if not (isinstance(call, OpenCall) and call.call == tool.index):
            yield from self._close("completed")
            self._open = call = OpenCall(tool, len(self._done))
            yield from call.begin()
        yield from call.add(tool.arguments)

    def _close(self, status: str) -> Iterator[Event]:
        last = self._open
        if last is not None:
            if isinstance(last, OpenMessage):
                last._logprobs += self._waiting
                self._waiting = []
            self._done.append(last.snapshot(status))
            self._open = None
            yield from last.end(status)
