"""What a session has committed."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core.contract.events import Channel, Delta, ToolCall, ToolDelta
from ninfer_core.contract.frontend import OutputSummary


class Transcript:
    """Adds up deltas; text is joined only when the summary is asked for."""

    def __init__(self) -> None:
        self._texts: dict[Channel, list[str]] = {channel: [] for channel in Channel}
        self._heads: list[ToolDelta] = []
        self._arguments: list[list[str]] = []
        self._warnings: list[str] = []

    def add(self, deltas: Iterable[Delta], warnings: Iterable[str]) -> None:
        for delta in deltas:
            self._texts[delta.channel].append(delta.text)
            if delta.tool is not None:
                self._add_tool(delta.tool)
        self._warnings += warnings

    def add_text(self, channel: Channel, text: str) -> None:
        self._texts[channel].append(text)

    def summary(self, reasoning_tokens: int, whole_calls: int) -> OutputSummary:
        """A call that was cut is not among the calls; a warning tells of it."""
        return OutputSummary(
            text="".join(self._texts[Channel.CONTENT]),
            reasoning="".join(self._texts[Channel.REASONING]),
            tool_calls=tuple(self._call(index) for index in range(whole_calls)),
            reasoning_tokens=reasoning_tokens,
            warnings=tuple(self._warnings),
        )

    def _add_tool(self, tool: ToolDelta) -> None:
        if tool.name is not None:
            self._heads.append(tool)
            self._arguments.append([])
        self._arguments[tool.index].append(tool.arguments)

    def _call(self, index: int) -> ToolCall:
        head = self._heads[index]
        return ToolCall(head.id or "", head.name or "", "".join(self._arguments[index]))
