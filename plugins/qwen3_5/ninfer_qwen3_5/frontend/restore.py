"""Where later prompts are likely to part from this one: exact token frontiers worth keeping.

Every boundary is found by rendering a beginning of the conversation, or the beginning followed by
a probe message, and comparing texts; no knowledge of the template's wording is used but the mark
that starts a turn. A boundary that is no boundary of tokens is left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ninfer_core.contract.frontend import RestoreKind, RestorePoint
from ninfer_core.contract.requests import CacheMarker
from ninfer_qwen3_5.frontend.conversation import PROBE, Conversation
from ninfer_qwen3_5.frontend.messages import Message
from ninfer_qwen3_5.frontend.vocabulary import TURN_START

MAX_USER_BOUNDARIES = 16
"""User messages, counted from the end, whose boundaries are looked for: a rendering for each end,
and one for each beginning behind an answer."""

_PRECEDENCE = (
    RestoreKind.EXPLICIT,
    RestoreKind.RESPONSE_REPLAY,
    RestoreKind.TURN_CLOSURE,
    RestoreKind.SYSTEM_AND_TOOLS,
    RestoreKind.USER_MESSAGE,
)


class _Place(NamedTuple):
    character: int
    kind: RestoreKind


def restore_points(
    conversation: Conversation,
    text: str,
    offsets: Sequence[tuple[int, int]],
    markers: Sequence[CacheMarker],
) -> tuple[RestorePoint, ...]:
    """Frontiers ``0 < f < n`` of the prompt ``text``, ascending, one kind each.

    Where kinds coincide the most specific one stands. An explicit marker inside a token moves
    back to that token's start.
    """
    found: dict[int, RestoreKind] = {}
    for place in _places(conversation, text, markers):
        frontier = _frontier(offsets, place.character, place.kind is RestoreKind.EXPLICIT)
        if frontier is not None:
            known = found.get(frontier, place.kind)
            found[frontier] = min(known, place.kind, key=_PRECEDENCE.index)
    return tuple(RestorePoint(frontier, found[frontier]) for frontier in sorted(found))


def _places(
    conversation: Conversation, text: str, markers: Sequence[CacheMarker]
) -> Iterator[_Place]:
    yield from _system_end(conversation, text)
    user_ends = _user_ends(conversation, text)
    yield from (_Place(end, RestoreKind.USER_MESSAGE) for end in user_ends)
    yield from _question_starts(conversation, text)
    yield from _response_places(conversation, text, user_ends)
    for marker in markers:
        yield from _marked_place(conversation, text, marker)


def _system_end(conversation: Conversation, text: str) -> Iterator[_Place]:
    """The end of what system messages and tools are rendered to: the start of the next turn."""
    systems = conversation.messages[: conversation.leading_systems]
    if systems or conversation.tools:
        place = _turn_start_before(text, conversation.closed([*systems, PROBE]))
        if place is not None:
            yield _Place(place, RestoreKind.SYSTEM_AND_TOOLS)


def _user_ends(conversation: Conversation, text: str) -> list[int]:
    """Ends of the turns of the last user messages, ascending."""
    messages = conversation.messages
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    beginnings = (conversation.closed(messages[: i + 1]) for i in users[-MAX_USER_BOUNDARIES:])
    return [len(b) for b in beginnings if b is not None and text.startswith(b)]


def _question_starts(conversation: Conversation, text: str) -> Iterator[_Place]:
    """Where the last user turns that follow an answer begin: a prompt that asks something else
    there parts from this one at its first word, behind all that was answered."""
    messages = conversation.messages
    behind_answers = [
        i
        for i, message in enumerate(messages)
        if i and message["role"] == "user" and messages[i - 1]["role"] == "assistant"
    ]
    for i in behind_answers[-MAX_USER_BOUNDARIES:]:
        place = _turn_start_before(text, conversation.closed([*messages[:i], PROBE]))
        if place is not None:
            yield _Place(place, RestoreKind.TURN_CLOSURE)


def _response_places(
    conversation: Conversation, text: str, user_ends: Sequence[int]
) -> Iterator[_Place]:
    """The point before the response, and where the next user message will rewrite history.

    Templates drop the thoughts of finished turns, so what was read since the last user message
    can only be reused until the next one; the point before it lasts.
    """
    before = conversation.closed(conversation.answered)
    if before is None or not text.startswith(before):
        return
    yield _Place(len(before), RestoreKind.RESPONSE_REPLAY)
    later = conversation.closed([*conversation.answered, PROBE])
    if later is not None and not later.startswith(before):
        lasting = [end for end in user_ends if later.startswith(text[:end])]
        if lasting:
            yield _Place(lasting[-1], RestoreKind.TURN_CLOSURE)


def _marked_place(conversation: Conversation, text: str, marker: CacheMarker) -> Iterator[_Place]:
    messages = conversation.messages
    if marker.message >= len(messages):
        return
    beginning = [*messages[: marker.message], _until(messages[marker.message], marker.part)]
    closed, probed = conversation.closed(beginning), conversation.closed([*beginning, PROBE])
    merged = marker.message < conversation.leading_systems - 1
    if beginning[-1] == messages[marker.message] and not merged:
        exact = closed is not None and text.startswith(closed)
        place = len(closed or "") if exact else _turn_start_before(text, probed)
    else:
        place = max(_common(text, closed or ""), _common(text, probed or ""))
    if place is not None:
        yield _Place(place, RestoreKind.EXPLICIT)


def _until(message: Message, part: int | None) -> Message:
    content = message.get("content")
    if part is None or not isinstance(content, list):
        return message
    return {**message, "content": content[: part + 1]}


def _turn_start_before(text: str, probed: str | None) -> int | None:
    """Where the turn begins within which ``text`` and ``probed`` part."""
    if probed is None:
        return None
    place = text.rfind(TURN_START, 0, _common(text, probed))
    return place if place > 0 else None


def _common(first: str, second: str) -> int:
    """Length of the longest common beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _frontier(offsets: Sequence[tuple[int, int]], character: int, move_back: bool) -> int | None:
    frontier = bisect_left(offsets, character, key=_start)
    while move_back and frontier > 0 and offsets[frontier - 1][1] > character:
        frontier -= 1
    inside = 0 < frontier < len(offsets)
    return frontier if inside and offsets[frontier - 1][1] <= character else None


def _start(offset: tuple[int, int]) -> int:
    return offset[0]
