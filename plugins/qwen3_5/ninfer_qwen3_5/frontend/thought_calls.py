"""A tool call that begins inside an open thought.

Some outputs call a tool without ending the thought, others only talk about how a call is written.
The two are told apart by what follows, as reasoning is split off first: it was a call if whole,
well-formed calls of declared tools are the last thing in the output; it was prose as soon as a
``</think>`` or any other text comes after it, or the output is cut within it. Until that is known
the text is withheld. When a thinking budget runs out inside such a call, it is taken for a call.
"""

from __future__ import annotations

from ninfer_core.contract.events import Channel, ToolDelta
from ninfer_qwen3_5.frontend.deltas import Rope, Sink, joined
from ninfer_qwen3_5.frontend.tool_calls import CallParser, Outcome, Stage
from ninfer_qwen3_5.frontend.tool_table import ToolTable
from ninfer_qwen3_5.frontend.vocabulary import CALL_CLOSE, CALL_OPEN

_Record = tuple["_Record", ToolDelta] | None


class ThoughtCall:
    """What may become calls: the text as written, and what it means if they are. Forks in O(1)."""

    __slots__ = ("_raw", "_record", "_spoiled", "_table", "count", "first", "parser", "whole")

    def __init__(self, table: ToolTable, first: int) -> None:
        self._table = table
        self._raw: Rope = (None, CALL_OPEN)
        self._record: _Record = None
        self._spoiled = False
        self.first = first
        self.count = 0
        self.whole = 0
        self.parser: CallParser | None = CallParser(table, first, outer=True)

    def fork(self) -> ThoughtCall:
        twin = object.__new__(ThoughtCall)
        for name in ThoughtCall.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.parser = self.parser and self.parser.fork()
        return twin

    @property
    def raw(self) -> str:
        return joined(self._raw)

    @property
    def started(self) -> bool:
        """Whether a declared function was named."""
        return self.count > 0 or (self.parser is not None and self.parser.started)

    @property
    def complete(self) -> bool:
        """Whether there are calls and all of them are closed."""
        return self.parser is None and self.whole > 0

    def feed(self, text: str) -> bool:
        """Take text; False if this is prose after all."""
        self._raw = (self._raw, text)
        if self.parser is None:
            return not text.strip()
        return self._holds(self.parser.feed(text, _Recorder(self)))

    def mark(self, spelling: str) -> bool:
        """Take the spelling of a mark other than ``</think>``; False if this is prose."""
        self._raw = (self._raw, spelling)
        if self.parser is None:
            self.parser = CallParser(self._table, self.first + self.count, outer=True)
            return spelling == CALL_OPEN
        recorder = _Recorder(self)
        if spelling == CALL_CLOSE:
            return self._holds(self.parser.close(recorder))
        inside = self.parser.stage is Stage.VALUE
        return inside and self._holds(self.parser.feed(spelling, recorder))

    def replay(self, sink: Sink) -> None:
        """Pass on what the calls have said so far."""
        record, deltas = self._record, []
        while record is not None:
            record, delta = record
            deltas.append(delta)
        for delta in reversed(deltas):
            sink.tool(delta)

    def _holds(self, outcome: Outcome) -> bool:
        if outcome.stage is Stage.DONE and self.parser is not None:
            self.count += self.parser.count
            self.whole += self.parser.whole
            self.parser = None
        return outcome.stage is not Stage.REJECTED and not self._spoiled

    def record(self, delta: ToolDelta) -> None:
        self._record = (self._record, delta)

    def spoil(self) -> None:
        self._spoiled = True


class _Recorder:
    """A sink for well-formed calls: text beside them, or a fault, makes them prose."""

    def __init__(self, call: ThoughtCall) -> None:
        self._call = call

    def text(self, channel: Channel, text: str) -> None:
        self._call.spoil()

    def tool(self, delta: ToolDelta) -> None:
        self._call.record(delta)

    def warn(self, warning: str) -> None:
        self._call.spoil()
