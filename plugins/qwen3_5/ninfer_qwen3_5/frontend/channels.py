"""Output text as reasoning, content and tool calls.

Rules, in the order in which they meet the output:

* Everything before ``</think>`` is reasoning when the prompt left a thought open or the output
  begins with ``<think>``. A later ``</think>`` is dropped. Line breaks before the mark, and
  between it and the content, are layout and belong to neither text.
* Calls are read only when tools are declared and allowed: after the ``<tool_call>`` token, or after
  ``<function=`` with a declared name at the beginning of a line. Line breaks before a call and
  white space after one are layout.
* A call inside an open thought is a call only if the thought never ends: see `thought_calls`.
* Stop strings are looked for in reasoning and in content, each for itself, never inside calls.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ninfer_core.contract.events import Channel
from ninfer_qwen3_5.frontend import vocabulary
from ninfer_qwen3_5.frontend.deltas import Sink
from ninfer_qwen3_5.frontend.stops import StopStrings
from ninfer_qwen3_5.frontend.stretch import Met, Stretch
from ninfer_qwen3_5.frontend.thought_calls import ThoughtCall
from ninfer_qwen3_5.frontend.tool_calls import CallParser, Outcome, Stage
from ninfer_qwen3_5.frontend.tool_table import ToolTable

BREAKS = "\n"
BLANKS = " \t\r\n"
EXACT_LAYOUT = 2


class Mark(enum.Enum):
    """Tokens that part channels; the value is their spelling."""

    THINK_OPEN = vocabulary.THINK_OPEN
    THINK_CLOSE = vocabulary.THINK_CLOSE
    CALL_OPEN = vocabulary.CALL_OPEN
    CALL_CLOSE = vocabulary.CALL_CLOSE


@dataclass(frozen=True, slots=True)
class ChannelRules:
    """What does not change during one output. ``tools`` None: calls are text.

    ``loose_calls``: calls are also read inside a thought and without their mark. ``exact_layout``:
    two line breaks after a thought are layout, and no more.
    """

    tools: ToolTable | None
    stops: StopStrings
    loose_calls: bool = True
    exact_layout: bool = False


class ChannelParser:
    """The state of one output; neither a fork nor a step costs more as the output grows.

    ``stretch`` is where visible text goes; ``_call`` or ``_thought_call`` takes the text instead
    while there is one. ``calls`` counts begun calls, ``whole_calls`` finished ones.
    """

    __slots__ = ("_call", "_rules", "_stretch", "_thought_call", "calls", "whole_calls")

    def __init__(self, rules: ChannelRules, channel: Channel) -> None:
        self._rules = rules
        self._stretch = Stretch(channel, rules.stops, rules.tools, bare_calls=rules.loose_calls)
        self._call: CallParser | None = None
        self._thought_call: ThoughtCall | None = None
        self.calls = 0
        self.whole_calls = 0

    def fork(self) -> ChannelParser:
        twin = object.__new__(ChannelParser)
        twin._rules, twin.calls, twin.whole_calls = self._rules, self.calls, self.whole_calls
        twin._stretch = self._stretch.fork()
        twin._call = self._call and self._call.fork()
        twin._thought_call = self._thought_call and self._thought_call.fork()
        return twin

    @property
    def channel(self) -> Channel:
        """Where the next text goes, as far as is known."""
        return Channel.TOOL_CALL if self._call is not None else self._stretch.channel

    @property
    def undecided(self) -> bool:
        """Whether the open thought may be about to name a function."""
        return self._thought_call is not None and not self._thought_call.started

    @property
    def prose(self) -> Stretch | None:
        """The stretch that takes all text as things stand; None inside or after a call."""
        if self._call is not None or self._thought_call is not None or self.whole_calls:
            return None
        return self._stretch

    def text(self, text: str, sink: Sink, armed: bool = True) -> str | None:
        """Take text. Returns the stop string that it completes, which ends the output."""
        if self._call is not None:
            return self._follow(self._call.feed(text, sink), sink, armed)
        if self._thought_call is not None:
            return self._keep_or_show(self._thought_call.feed(text), sink, armed)
        return self._met(self._stretch.feed(text, sink, armed), sink, armed)

    def mark(self, mark: Mark, sink: Sink, armed: bool = True) -> str | None:
        """Take a mark, or its spelling where it means nothing. Returns as `text` does."""
        if self._call is not None:
            return self._mark_in_call(self._call, mark, sink, armed)
        if self._thought_call is not None and mark is not Mark.THINK_CLOSE:
            return self._keep_or_show(self._thought_call.mark(mark.value), sink, armed)
        if self._stretch.channel is Channel.REASONING:
            return self._mark_in_reasoning(mark, sink, armed)
        return self._mark_in_content(mark, sink, armed)

    def adopt_thought_call(self, sink: Sink) -> None:
        """Take the call that began inside the open thought, if one did, for the thought's end."""
        found = self._thought_call
        if found is None or not found.started:
            return
        self._thought_call = None
        self._stretch.flush(sink)
        found.replay(sink)
        self.calls, self.whole_calls = found.first + found.count, self.whole_calls + found.whole
        self._call = found.parser
        self._enter(Channel.CONTENT, layout=BLANKS, after_call=True)

    def finish(self, sink: Sink, natural: bool) -> None:
        """Let go of what was withheld; ``natural``: the model ended the output itself."""
        if self._thought_call is not None:
            if self._thought_call.complete:
                self.adopt_thought_call(sink)
            else:
                self._keep_or_show(False, sink, armed=False)
        if self._call is not None:
            self._follow(self._call.end(sink, natural), sink, armed=False)
        self._stretch.finish(sink)

    def _enter(self, channel: Channel, *, layout: str, after_call: bool = False) -> None:
        rules = self._rules
        self._stretch = Stretch(
            channel,
            rules.stops,
            rules.tools,
            layout=layout,
            most_layout=EXACT_LAYOUT if rules.exact_layout else None,
            bare_calls=rules.loose_calls,
            after_call=after_call,
        )

    def _met(self, met: Met, sink: Sink, armed: bool) -> str | None:
        if met.call is None or self._rules.tools is None:
            return met.stop
        self._call = CallParser(self._rules.tools, self.calls, outer=False)
        return self._follow(self._call.feed(met.call, sink), sink, armed)

    def _follow(self, outcome: Outcome, sink: Sink, armed: bool) -> str | None:
        """Go on after the open call took something.

        A call that was one begins a new stretch, with which line breaks withheld before the call
        are dropped as layout; after anything else the old stretch goes on.
        """
        call = self._call
        if call is None or outcome.stage not in (Stage.DONE, Stage.REJECTED):
            return None
        self._call = None
        if call.started:
            self.calls, self.whole_calls = self.calls + call.count, self.whole_calls + call.whole
            self._enter(Channel.CONTENT, layout=BLANKS, after_call=True)
        return self.text(outcome.rest, sink, armed) if outcome.rest else None

    def _keep_or_show(self, plausible: bool, sink: Sink, armed: bool) -> str | None:
        """Show the withheld beginning of a call as the prose that it was."""
        found = self._thought_call
        if plausible or found is None:
            return None
        self._thought_call = None
        return self.text(found.raw, sink, armed)

    def _mark_in_call(self, call: CallParser, mark: Mark, sink: Sink, armed: bool) -> str | None:
        if mark is Mark.CALL_CLOSE:
            return self._follow(call.close(sink), sink, armed)
        if call.stage not in (Stage.VALUE, Stage.STRAY_VALUE):
            if mark is Mark.THINK_CLOSE:
                return None
            if mark is Mark.CALL_OPEN:
                stop = self._follow(call.end(sink, natural=True), sink, armed)
                return stop or self.mark(mark, sink, armed)
        return self._follow(call.feed(mark.value, sink), sink, armed)

    def _mark_in_reasoning(self, mark: Mark, sink: Sink, armed: bool) -> str | None:
        tools = self._rules.tools
        if mark is Mark.THINK_CLOSE:
            stop = self._keep_or_show(False, sink, armed)
            if stop is None:
                self._stretch.flush(sink)
                self._enter(Channel.CONTENT, layout=BREAKS)
            return stop
        if mark is Mark.THINK_OPEN and self._stretch.blank:
            self._enter(Channel.REASONING, layout=BREAKS)
            return None
        if mark is Mark.CALL_OPEN and tools is not None and self._rules.loose_calls:
            self._thought_call = ThoughtCall(tools, self.calls)
            return None
        return self.text(mark.value, sink, armed)

    def _mark_in_content(self, mark: Mark, sink: Sink, armed: bool) -> str | None:
        tools, stretch = self._rules.tools, self._stretch
        if mark is Mark.CALL_OPEN and tools is not None:
            stretch.flush(sink)
            self._call = CallParser(tools, self.calls, outer=True)
            return None
        if mark is Mark.THINK_OPEN and stretch.blank and not stretch.just_after_call:
            self._enter(Channel.REASONING, layout=BREAKS)
            return None
        if mark is Mark.THINK_CLOSE:
            if stretch.blank and not stretch.just_after_call:
                self._enter(Channel.CONTENT, layout=BREAKS)
            return None
        if mark is Mark.CALL_CLOSE and stretch.just_after_call:
            return None
        return self.text(mark.value, sink, armed)
