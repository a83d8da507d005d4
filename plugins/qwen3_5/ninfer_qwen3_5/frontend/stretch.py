"""One stretch of visible text: what may be shown, and what must wait."""

from __future__ import annotations

from typing import NamedTuple

from ninfer_core.contract.events import Channel
from ninfer_qwen3_5.frontend.deltas import Sink
from ninfer_qwen3_5.frontend.stops import StopStrings
from ninfer_qwen3_5.frontend.tags import FUNCTION_OPEN, name_end
from ninfer_qwen3_5.frontend.tool_table import ToolTable

TRAILING = "trailing_content"


class Met(NamedTuple):
    """What ends the stretch: a stop string, or the text of a bare call."""

    stop: str | None = None
    call: str | None = None


class Stretch:
    """Reasoning or content between two marks.

    ``_pending`` is withheld because a stop string or a call may begin there, and ``_breaks`` line
    breaks before it because they may be layout before a mark. Characters of ``layout`` at the
    beginning are dropped, at most ``most_layout`` of them. With ``tools``, line breaks before a
    call are layout, and a bare call is looked for if there may be ``bare_calls``.
    """

    __slots__ = (
        *("_after_call", "_bare", "_breaks", "_layout", "_line_start", "_matched", "_most"),
        *("_pending", "_stops", "_tools", "channel", "written"),
    )

    def __init__(
        self,
        channel: Channel,
        stops: StopStrings,
        tools: ToolTable | None,
        *,
        layout: str = "",
        most_layout: int | None = None,
        bare_calls: bool = True,
        after_call: bool = False,
    ) -> None:
        self.channel = channel
        self.written = False
        self._stops = stops
        self._tools = tools if channel is Channel.CONTENT else None
        self._bare = self._tools if bare_calls else None
        self._layout = layout
        self._most = most_layout
        self._after_call = after_call
        self._matched = stops.start
        self._pending = ""
        self._breaks = 0
        self._line_start = True

    def fork(self) -> Stretch:
        twin = object.__new__(Stretch)
        for name in Stretch.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    @property
    def blank(self) -> bool:
        """Whether nothing has been shown and nothing that could be is withheld."""
        return not self.written and not self._pending

    @property
    def just_after_call(self) -> bool:
        return self._after_call and self.blank

    def feed(self, text: str, sink: Sink, armed: bool) -> Met:
        """Take text; ``armed``: stop strings are looked for."""
        if self._layout:
            text = self._without_layout(text)
        known, whole = len(self._pending), self._pending + text
        call = _bare_call(whole, self._line_start, self._bare)
        end = call.end if call is not None and call.end is not None else len(whole)
        scan = self._stops.scan(self._matched, whole[known:end], armed)
        self._matched, self._pending = scan.matched, ""
        if scan.stop is not None:
            self._show(whole[: known + scan.end - len(scan.stop)], sink)
            return Met(stop=scan.stop)
        shown = len(whole) - self._stops.withheld(scan.matched)
        if call is not None:
            shown = call.start if call.end is not None else min(shown, call.start)
        self._show(whole[:shown], sink)
        if call is not None and call.end is not None:
            return Met(call=whole[shown:])
        self._pending = whole[shown:]
        return Met()

    def _without_layout(self, text: str) -> str:
        kept = text.lstrip(self._layout)
        if self._most is not None:
            kept = kept if len(text) - len(kept) <= self._most else text[self._most :]
            self._most -= len(text) - len(kept)
        if kept or self._most == 0:
            self._layout = ""
        return kept

    def prose(self, text: str) -> str | None:
        """What :meth:`feed` would show of ``text`` where it shows all of it; changes nothing.

        None where something may be withheld or dropped, and where stop strings are looked for.
        """
        if (
            self._layout
            or self._pending
            or self._stops.start
            or (self._after_call and not self.written)
            or (self._bare is not None and "<" in text)
            or (text.endswith("\n") and self._withholds_breaks)
        ):
            return None
        return "\n" * self._breaks + text if self._breaks and text else text

    def add_prose(self, text: str) -> None:
        """Take text of which :meth:`prose` said what is shown."""
        if text:
            self._line_start = text.endswith("\n")
            self._breaks = 0
            self.written = True

    def flush(self, sink: Sink) -> None:
        """Show what was withheld for stop strings and calls."""
        pending, self._pending = self._pending, ""
        self._matched = self._stops.start
        self._show(pending, sink)

    def finish(self, sink: Sink) -> None:
        """No mark comes any more: line breaks are text."""
        self.flush(sink)
        sink.text(self.channel, "\n" * self._breaks)
        self._breaks = 0

    def _show(self, text: str, sink: Sink) -> None:
        if not text:
            return
        self._line_start = text.endswith("\n")
        body = text.rstrip("\n") if self._withholds_breaks else text
        if not body:
            self._breaks += len(text)
            return
        if self._after_call and not self.written:
            sink.warn(f"{TRAILING}: text follows a tool call")
        sink.text(self.channel, "\n" * self._breaks + body)
        self._breaks = len(text) - len(body)
        self.written = True

    @property
    def _withholds_breaks(self) -> bool:
        return self.channel is Channel.REASONING or self._tools is not None


class _BareCall(NamedTuple):
    """``end`` is behind the head of the call, None while the head is not whole."""

    start: int
    end: int | None


def _bare_call(text: str, line_start: bool, tools: ToolTable | None) -> _BareCall | None:
    """The first ``<function=NAME>`` with a declared name at the beginning of a line."""
    place = text.find("<") if tools is not None else -1
    while tools is not None and place >= 0:
        if text[place - 1] == "\n" if place else line_start:
            end = _head_end(text, place, tools)
            if end != 0:
                return _BareCall(place, end)
        place = text.find("<", place + 1)
    return None


def _head_end(text: str, place: int, tools: ToolTable) -> int | None:
    """The end of the head at ``place``; None while it may become one, 0 if it is none."""
    tail = text[place : place + len(FUNCTION_OPEN)]
    if tail != FUNCTION_OPEN:
        return None if FUNCTION_OPEN.startswith(tail) else 0
    name = text[place + len(FUNCTION_OPEN) :]
    end = name_end(name)
    if end == -1:
        return None if tools.may_become(name) else 0
    if end is None or name[:end] not in tools:
        return 0
    return place + len(FUNCTION_OPEN) + end + 1
