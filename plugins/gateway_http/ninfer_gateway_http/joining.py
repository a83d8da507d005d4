"""What a reader finds waiting: deltas that came one by one and are one delta by now."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from ninfer_core.contract.events import Delta, ToolDelta

MOST_JOINED: Final = 64
"""Deltas that one may be made of: with log-probabilities of 20 alternatives it is some 100 kB."""


def take_joined(items: deque[Any]) -> Any:
    """Remove and return the first of ``items``, not empty; a delta together with those behind it
    that go on with it.

    What is put together has one channel and is of one call at most, which it may begin: nothing
    changes its order.
    """
    first = items.popleft()
    if not items or type(first) is not Delta:
        return first
    run, tool, texted = [first], first.tool, bool(first.text)
    while items and len(run) < MOST_JOINED:
        one = items[0]
        if type(one) is not Delta or one.channel is not first.channel:
            break
        if one.tool is not None:
            if texted or not (tool is None or _goes_on(tool, one.tool)):
                break
            tool = tool or one.tool
        elif one.text:
            if tool is not None:
                break
            texted = True
        run.append(items.popleft())
    return first if len(run) == 1 else _joined(run, tool)


def _goes_on(tool: ToolDelta, other: ToolDelta) -> bool:
    return other.index == tool.index and other.id is None and other.name is None


def _joined(run: Sequence[Delta], tool: ToolDelta | None) -> Delta:
    if tool is not None:
        arguments = "".join(one.tool.arguments for one in run if one.tool is not None)
        tool = replace(tool, arguments=arguments)
    return Delta(
        channel=run[0].channel,
        text="".join([one.text for one in run]),
        token_ids=tuple(chain.from_iterable(one.token_ids for one in run)),
        logprobs=tuple(chain.from_iterable(one.logprobs for one in run)),
        tool=tool,
    )
