"""Incremental reading of the family's tool-call form.

::

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

A value ends at ``</parameter>``, at the next ``<parameter=`` or at ``</function>``; any other text
that looks like markup belongs to it. Where the form is broken nothing is lost: text that is no
part of a call goes to the content, and a warning names the fault.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from ninfer_core.contract.events import Channel, ToolDelta
from ninfer_qwen3_5.frontend.deltas import Sink
from ninfer_qwen3_5.frontend.tags import (
    FUNCTION_CLOSE,
    FUNCTION_OPEN,
    PARAMETER_CLOSE,
    PARAMETER_OPEN,
    name_end,
    split_at_tag,
)
from ninfer_qwen3_5.frontend.tool_arguments import ArgumentWriter
from ninfer_qwen3_5.frontend.tool_table import ToolTable
from ninfer_qwen3_5.frontend.vocabulary import CALL_CLOSE, CALL_OPEN

MALFORMED = "malformed_structure"
DUPLICATE = "duplicate_parameter"
UNDECLARED = "undeclared_tool"
UNCLOSED = "unclosed_call"
CUT = "cut_call"
MAX_BLANK_CHARS = 64
_VALUE_ENDS = (PARAMETER_CLOSE, PARAMETER_OPEN, FUNCTION_CLOSE)


class Stage(enum.Enum):
    """What comes next: a call's head, a parameter or the end, a key, a value, the outer end."""

    HEAD = enum.auto()
    BODY = enum.auto()
    KEY = enum.auto()
    VALUE = enum.auto()
    STRAY_VALUE = enum.auto()
    AFTER = enum.auto()
    DONE = enum.auto()
    REJECTED = enum.auto()


class Outcome(NamedTuple):
    """``stage`` DONE: ``rest`` comes after the call. REJECTED: ``rest`` was no call, as written."""

    stage: Stage
    rest: str = ""


class CallParser:
    """One ``<tool_call>`` block, or one bare ``<function=``. ``fork`` copies in O(1)."""

    __slots__ = (
        *("_arguments", "_name", "_outer", "_straying", "_table", "_text"),
        *("count", "first", "stage", "whole"),
    )

    def __init__(self, table: ToolTable, first: int, *, outer: bool) -> None:
        self._table = table
        self._outer = outer
        self._text = ""
        self._name = ""
        self._arguments = ArgumentWriter()
        self._straying = False
        self.first = first
        self.count = 0
        self.whole = 0
        self.stage = Stage.HEAD

    def fork(self) -> CallParser:
        twin = CallParser(self._table, self.first, outer=self._outer)
        twin._text, twin._name, twin._arguments = self._text, self._name, self._arguments.fork()
        twin.count, twin.whole, twin.stage = self.count, self.whole, self.stage
        twin._straying = self._straying
        return twin

    @property
    def started(self) -> bool:
        """Whether a call has been reported, so that there is no way back."""
        return self.count > 0

    def feed(self, text: str, sink: Sink) -> Outcome:
        self._text += text
        moved = True
        while moved and self.stage in _STEPS:
            moved = _STEPS[self.stage](self, sink)
        return Outcome(self.stage, "" if self.stage in _STEPS else self._text)

    def close(self, sink: Sink) -> Outcome:
        """The block's closing token was met."""
        if self.stage is Stage.HEAD and not self.started:
            return self._reject(sink, MALFORMED, "a call has no function", CALL_CLOSE)
        if self.stage in (Stage.HEAD, Stage.AFTER):
            self._stray(sink, self._text, "text stands in a call block")
        else:
            self._end_call(sink, f"{CALL_CLOSE} came before {FUNCTION_CLOSE}")
        self.stage = Stage.DONE
        return Outcome(Stage.DONE)

    def end(self, sink: Sink, natural: bool) -> Outcome:
        """The output is over; unless ``natural``, it was cut."""
        if natural:
            return self._end_by_itself(sink)
        if self.stage is Stage.HEAD:
            sink.warn(f"{CUT}: a tool call was cut before its function was named")
        elif self.stage is not Stage.AFTER:
            sink.warn(f"{CUT}: the call of {self._name!r} was cut")
        self.stage = Stage.DONE
        return Outcome(Stage.DONE)

    def _end_by_itself(self, sink: Sink) -> Outcome:
        if self.stage is Stage.HEAD and not self.started:
            return self._reject(sink, MALFORMED, "a call has no function", "")
        if self.stage in (Stage.HEAD, Stage.AFTER):
            self._stray(sink, self._text, "text stands in a call block")
        else:
            self._end_call(sink, f"{FUNCTION_CLOSE} is missing")
        self.stage = Stage.DONE
        return Outcome(Stage.DONE)

    def _end_call(self, sink: Sink, why: str) -> None:
        sink.warn(f"{UNCLOSED}: the call of {self._name!r} was closed because {why}")
        if self.stage is Stage.VALUE:
            self._write(sink, self._arguments.write(self._text) + self._arguments.close())
        else:
            lead = PARAMETER_OPEN if self.stage is Stage.KEY else ""
            self._stray(sink, lead + self._text, "text stands between parameters")
        self._finish_call(sink)

    def _reject(self, sink: Sink, fault: str, why: str, after: str) -> Outcome:
        sink.warn(f"{fault}: {why}; its text is content")
        self._text = (CALL_OPEN if self._outer and not self.started else "") + self._text + after
        self.stage = Stage.REJECTED
        return Outcome(Stage.REJECTED, self._text)

    def _head(self, sink: Sink) -> bool:
        text = self._text.lstrip()
        if FUNCTION_OPEN.startswith(text) and len(self._text) - len(text) <= MAX_BLANK_CHARS:
            return False
        end = name_end(text.removeprefix(FUNCTION_OPEN)) if text.startswith(FUNCTION_OPEN) else None
        if end == -1:
            return False
        if end is None:
            self._reject(sink, MALFORMED, "a call does not begin with a function", "")
            return True
        name, rest = text[len(FUNCTION_OPEN) :][:end], text[len(FUNCTION_OPEN) + end + 1 :]
        if name not in self._table:
            self._reject(sink, UNDECLARED, f"no tool is named {name!r}", "")
            return True
        self._begin_call(sink, name)
        self._text = rest
        return True

    def _begin_call(self, sink: Sink, name: str) -> None:
        index = self.first + self.count
        self.count += 1
        self._name, self._arguments, self.stage = name, ArgumentWriter(), Stage.BODY
        sink.tool(ToolDelta(index=index, id=self._table.call_id(index), name=name))

    def _body(self, sink: Sink) -> bool:
        before, tag, self._text = split_at_tag(self._text, (PARAMETER_OPEN, FUNCTION_CLOSE))
        self._stray(sink, before, "text stands between parameters")
        self._straying = self._straying and tag is None
        if tag == PARAMETER_OPEN:
            self.stage = Stage.KEY
        elif tag == FUNCTION_CLOSE:
            self._finish_call(sink)
        return tag is not None

    def _key(self, sink: Sink) -> bool:
        end = name_end(self._text)
        if end == -1:
            return False
        if end is None:
            self._stray(sink, PARAMETER_OPEN, "a parameter has no name")
            self.stage = Stage.BODY
            return True
        key, self._text = self._text[:end], self._text[end + 1 :]
        if key in self._arguments.names:
            sink.warn(f"{DUPLICATE}: {key!r} was given twice to {self._name!r}")
            self.stage = Stage.STRAY_VALUE
        else:
            self._write(sink, self._arguments.open(key, self._table.types(self._name, key)))
            self.stage = Stage.VALUE
        return True

    def _value(self, sink: Sink) -> bool:
        before, tag, rest = split_at_tag(self._text, _VALUE_ENDS)
        self._write(sink, self._arguments.write(before))
        self._text = rest
        if tag is None:
            return False
        self._write(sink, self._arguments.close())
        self._leave_value(tag)
        return True

    def _stray_value(self, sink: Sink) -> bool:
        before, tag, rest = split_at_tag(self._text, _VALUE_ENDS)
        sink.text(Channel.CONTENT, before)
        self._text = rest
        if tag is not None:
            self._leave_value(tag)
        return tag is not None

    def _leave_value(self, tag: str) -> None:
        self.stage = Stage.BODY
        if tag != PARAMETER_CLOSE:
            self._text = tag + self._text

    def _after(self, sink: Sink) -> bool:
        tags = (FUNCTION_OPEN,) if self._table.parallel else ()
        before, tag, self._text = split_at_tag(self._text, tags)
        self._stray(sink, before, "text stands in a call block")
        self._straying = self._straying and tag is None
        if tag is not None:
            self._text = FUNCTION_OPEN + self._text
            self.stage = Stage.HEAD
        return tag is not None

    def _finish_call(self, sink: Sink) -> None:
        self._write(sink, self._arguments.finish())
        self.whole += 1
        self.stage = Stage.AFTER if self._outer else Stage.DONE

    def _write(self, sink: Sink, fragment: str) -> None:
        if fragment:
            index = self.first + self.count - 1
            sink.tool(ToolDelta(index=index, arguments=fragment))

    def _stray(self, sink: Sink, text: str, why: str) -> None:
        """Text outside values: blanks are layout until something else comes."""
        text = text if self._straying else text.lstrip()
        if text:
            if not self._straying:
                sink.warn(f"{MALFORMED}: {why}; it is content")
            self._straying = True
            sink.text(Channel.CONTENT, text)


_STEPS = {
    Stage.HEAD: CallParser._head,
    Stage.BODY: CallParser._body,
    Stage.KEY: CallParser._key,
    Stage.VALUE: CallParser._value,
    Stage.STRAY_VALUE: CallParser._stray_value,
    Stage.AFTER: CallParser._after,
}
