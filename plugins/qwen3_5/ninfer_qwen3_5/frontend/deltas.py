"""Where interpreted output goes: deltas ready to publish, or a record to be replayed or dropped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from ninfer_core.contract.events import Channel, Delta, ToolDelta
from ninfer_core.contract.sampling import TokenLogprobs


class Sink(Protocol):
    """Takes interpreted output, in order."""

    def text(self, channel: Channel, text: str) -> None: ...

    def tool(self, delta: ToolDelta) -> None: ...

    def warn(self, warning: str) -> None: ...


@dataclass(slots=True)
class _Entry:
    channel: Channel
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    tool: ToolDelta | None = None

    def finished(self) -> Delta:
        return Delta(
            channel=self.channel,
            text="".join(self.texts),
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            tool=self.tool,
        )


class DeltaBuilder:
    """Collects the deltas of one preview, joining neighbours that belong together.

    The head of a call (its id and name) always stands in a delta without arguments.
    """

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self.warnings: list[str] = []

    def text(self, channel: Channel, text: str) -> None:
        if text:
            last = self._entries[-1] if self._entries else None
            if last is None or last.channel is not channel or last.tool is not None:
                last = self._added(channel)
            last.texts.append(text)

    def tool(self, delta: ToolDelta) -> None:
        last = self._entries[-1] if self._entries else None
        if last is None or last.channel is not Channel.TOOL_CALL:
            last = self._added(Channel.TOOL_CALL)
        if last.tool is None:
            last.tool = delta
        elif delta.name is None and last.tool.name is None and last.tool.index == delta.index:
            last.tool = replace(last.tool, arguments=last.tool.arguments + delta.arguments)
        else:
            self._added(Channel.TOOL_CALL).tool = delta

    def token(self, channel: Channel, token_id: int, logprobs: TokenLogprobs | None) -> None:
        """Account for one token, after what it led to."""
        last = self._entries[-1] if self._entries else None
        if last is None or last.channel is not channel:
            last = self._added(channel)
        last.token_ids.append(token_id)
        if logprobs is not None:
            last.logprobs.append(logprobs)

    def warn(self, warning: str) -> None:
        self.warnings.append(warning)

    def deltas(self) -> tuple[Delta, ...]:
        return tuple(entry.finished() for entry in self._entries)

    def _added(self, channel: Channel) -> _Entry:
        self._entries.append(_Entry(channel))
        return self._entries[-1]


Rope = tuple["Rope", str] | None
"""Text in pieces, last piece first: appending is cheap and leaves older ropes as they were."""


def joined(rope: Rope) -> str:
    pieces: list[str] = []
    while rope is not None:
        rope, piece = rope
        pieces.append(piece)
    return "".join(reversed(pieces))
