"""The stages that a constrained output goes through: thought, layout, answer, calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ninfer_core.contract.events import Channel
from ninfer_qwen3_5.frontend.vocabulary import Vocabulary

LAYOUT = "\n\n"
"""What parts the end of a thought from a constrained answer, as the template writes it."""
BREAK = "\n"
"""What may part a call from the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``content``: it has a form; ``calls``: it may hold calls, or with ``must_call`` does and
    holds nothing else; ``may_think``: it may begin with a thought that no prompt has opened."""

    content: bool
    calls: bool
    must_call: bool
    parallel: bool
    may_think: bool

    @property
    def free(self) -> bool:
        return not self.content and not self.must_call


def output_stages(
    answer: Answer, starts_in: Channel, marks: Vocabulary, parts: dict[str, Any]
) -> dict[str, Any]:
    """The framing, as ``ninfer_core.contract.grammar`` describes it. Adds what it needs to
    ``parts``.

    A thought is free text and ends only with its mark; then comes the answer at once.
    """
    stages: list[dict[str, Any]] = []

    def add(part: str | None, *, end: bool) -> int:
        stages.append({"part": part, "exits": {}, "early": {}, "end": end, "next": None})
        return len(stages) - 1

    thought = add(None, end=False)
    body = add("content" if answer.content else "nothing" if answer.must_call else None, end=True)
    stages[body]["end"] = not answer.must_call
    if answer.must_call:
        parts["nothing"] = _text("")
    after_thought = body
    if not answer.free:
        parts["layout"] = _text(LAYOUT)
        after_thought = add("layout", end=False)
        stages[after_thought]["next"] = body
    stages[thought]["exits"] = {marks.think_close: after_thought}
    if answer.calls:
        parts["break"] = {"kind": "optional", "item": _text(BREAK)}
        call, gap = add("call", end=False), add("break", end=True)
        stages[call]["exits"] = {marks.call_close: gap}
        stages[body]["early" if answer.content else "exits"] = {marks.call_open: call}
        if answer.parallel:
            stages[gap]["exits"] = {marks.call_open: call}
    start = thought if starts_in is Channel.REASONING else body
    if answer.free and answer.may_think:
        start = add(None, end=True)
        stages[start] |= {"exits": stages[body]["exits"], "early": {marks.think_open: thought}}
    return {"start": start, "stages": stages}


def _text(value: str) -> dict[str, Any]:
    return {"kind": "text", "value": value}
