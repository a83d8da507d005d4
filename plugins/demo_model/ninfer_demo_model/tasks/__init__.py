"""Generated conversations with checkable answers.

Pure standard library and independent of training, so that a test can draw fresh cases that the
model never saw::

    case = draw("reverse", Random(7), "heldout")
    ...  # run case.messages with case.tools, thinking on iff case.thinking
    assert case.check(Reply(text=text, reasoning=reasoning, tool_calls=calls))

Ranges are bounded: copy and reverse take at most 8 items, sort at most 8 numbers, count at most
12 items, arithmetic stays in 0..99, and all words come from `words`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ninfer_demo_model.tasks import formats, lists, memory, numbers, records, talk, tools
from ninfer_demo_model.tasks.case import Case, Draft, Reply, Split, ToolCall, split_of

__all__ = ["EXTRA", "FAMILIES", "Case", "Reply", "Split", "ToolCall", "draw", "split_of"]

_DRAWS_AT_MOST = 1000

_GRADED: dict[str, Callable[[Random], Draft]] = {
    "copy": lists.copy,
    "reverse": lists.reverse,
    "sort": lists.sort,
    "arithmetic": numbers.arithmetic,
    "count": lists.count,
    "recall": memory.recall,
    "extract": records.extract,
    "tools": tools.tools,
    "system_format": formats.system_format,
    "think": numbers.think,
}
_FURTHER: dict[str, Callable[[Random], Draft]] = {
    "recall_single": memory.recall_single,
    "recall_bound": memory.recall_bound,
    "recall_turns": memory.recall_turns,
    "recall_medium": memory.recall_medium,
    "recall_long": memory.recall_long,
    "wide_sum": numbers.wide_sum,
    "tool_result": tools.tool_result,
    "no_tool": tools.no_tool,
    "talk": talk.talk,
}

FAMILIES = tuple(_GRADED)
"""Families whose accuracy the model card states."""

EXTRA = tuple(_FURTHER)
"""Variants of `recall` by themselves, and conversations that make the model rounder."""


def draw(
    family: str, rng: Random, split: Split = "heldout", *, thinking: bool | None = None
) -> Case:
    """Draw one case of `family` whose operands fall on `split`.

    Args:
        family: one of `FAMILIES` or `EXTRA`.
        rng: the only source of randomness.
        split: `"train"`, `"heldout"`, or `"any"` to ignore the split.
        thinking: whether the assistant thinks first; by default only the family `think` does.

    Raises:
        ValueError: unknown family, or a family too small to have such a case.
    """
    make = _GRADED.get(family) or _FURTHER.get(family)
    if make is None:
        raise ValueError(f"family {family!r} is unknown; use one of {', '.join(FAMILIES + EXTRA)}")
    thinks = family == "think" if thinking is None else thinking
    hashed = _hashed_as(family)
    for _ in range(_DRAWS_AT_MOST):
        draft = make(rng)
        if split == "any" or split_of(hashed, draft.key) == split:
            return _case(family, draft, thinks)
    raise ValueError(f"family {family!r} has no case on split {split!r}")


def _hashed_as(family: str) -> str:
    """Variants share the split of the family they belong to."""
    if family.startswith("recall"):
        return "recall"
    return "arithmetic" if family in ("no_tool", "wide_sum") else family


def _case(family: str, draft: Draft, thinking: bool) -> Case:
    reasoning = draft.thought if thinking else ""
    return Case(
        family=family,
        variant=draft.variant,
        key=draft.key,
        messages=draft.messages,
        tools=draft.tools,
        thinking=thinking,
        reply=Reply(draft.reply.text, reasoning, draft.reply.tool_calls),
        match=draft.match,
    )
