"""A message as the events of a stream, block after block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ninfer_core.contract.events import (
    Channel,
    Delta,
    GenerationResult,
    GenerationStart,
    ToolDelta,
)
from ninfer_gateway_http import sse
from ninfer_gateway_http.anthropic.replies import MessageWriter, report_of, stop_of, usage_of
from ninfer_gateway_http.anthropic.thinking import signature_of

JsonDict = dict[str, Any]


def event(payload: JsonDict) -> bytes:
    """One event, named after its type."""
    return f"event: {payload['type']}\n".encode() + sse.event(payload)


PING: Final = event({"type": "ping"})


class MessageEvents:
    """The events of one message, in order: each method gives what comes next.

    One block is open at a time; it ends when output of another kind, or another call, begins.
    """

    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer
        self._blocks = 0
        self._open: Channel | None = None
        self._call = -1
        self._thought: list[str] = []
        self._stencil: sse.Stencil | None = None

    def opening(self, start: GenerationStart) -> Iterator[JsonDict]:
        yield {"type": "message_start", "message": self._writer.opening(start)}

    def text(self, delta: Delta) -> bytes | None:
        """As :meth:`delta` for one that is only more text of the open block; None for any other."""
        if self._stencil is None or self._open is not delta.channel or not delta.text or delta.tool:
            return None
        if delta.channel is Channel.REASONING:
            self._thought.append(delta.text)
        return self._stencil.filled(delta.text)

    def delta(self, delta: Delta) -> Iterator[JsonDict]:
        """Nothing for a delta that only accounts for tokens."""
        if delta.tool is not None:
            yield from self._tool(delta.tool)
        elif delta.text and delta.channel is Channel.REASONING:
            yield from self._block(Channel.REASONING, {"type": "thinking", "thinking": ""})
            self._thought.append(delta.text)
            if self._writer.shown:
                yield self._piece("thinking_delta", "thinking", delta.text)
        elif delta.text:
            yield from self._block(Channel.CONTENT, {"type": "text", "text": ""})
            yield self._piece("text_delta", "text", delta.text)

    def closing(self, result: GenerationResult) -> Iterator[JsonDict]:
        """The end of the message. Raises Cancelled."""
        stop = stop_of(result)
        yield from self._close()
        last = {"type": "message_delta", "delta": stop, "usage": usage_of(result.usage)}
        yield last | report_of(result)
        yield {"type": "message_stop"}

    def _tool(self, tool: ToolDelta) -> Iterator[JsonDict]:
        if tool.index != self._call:
            yield from self._close()
            self._call = tool.index
            block: JsonDict = {"type": "tool_use", "id": tool.id, "name": tool.name, "input": {}}
            yield from self._block(Channel.TOOL_CALL, block)
        if tool.arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": tool.arguments})

    def _block(self, channel: Channel, block: JsonDict) -> Iterator[JsonDict]:
        """Make sure that a block of ``channel`` is open."""
        if self._open is channel:
            return
        yield from self._close()
        self._open = channel
        if channel is Channel.REASONING:
            block = {**block, "signature": ""}
        yield {"type": "content_block_start", "index": self._blocks, "content_block": block}

    def _close(self) -> Iterator[JsonDict]:
        if self._open is None:
            return
        if self._open is Channel.REASONING:
            signature = signature_of("".join(self._thought), shown=self._writer.shown)
            self._thought.clear()
            yield self._delta({"type": "signature_delta", "signature": signature})
        yield {"type": "content_block_stop", "index": self._blocks}
        self._blocks += 1
        self._open = self._stencil = None

    def _piece(self, kind: str, field: str, text: str) -> JsonDict:
        """A delta of text, and from now on a stencil for those that follow it."""
        if self._stencil is None:
            hole = {"type": kind, field: sse.Stencil.HOLE}
            self._stencil = sse.Stencil(event(self._delta(hole)))
        return self._delta({"type": kind, field: text})

    def _delta(self, delta: JsonDict) -> JsonDict:
        return {"type": "content_block_delta", "index": self._blocks, "delta": delta}
