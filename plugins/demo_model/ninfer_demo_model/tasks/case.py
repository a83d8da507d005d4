"""A conversation with one checkable answer, and the split of the operand space."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Message = Mapping[str, Any]
Split = Literal["train", "heldout", "any"]
Match = Literal["text", "json", "tools"]

HELDOUT_PARTS = 8
"""One part in this many of every family's operand space is kept out of training."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: the tool's name and its arguments, decoded."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What an assistant turn holds. `text` excludes reasoning and tool calls."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """A case before the thinking mode is chosen.

    `key` names the operands alone, never the wording, so that a held-out operand is unseen under
    every wording. `thought` is what a thinking assistant writes first.
    """

    key: str
    messages: tuple[Message, ...]
    reply: Reply
    thought: str
    match: Match = "text"
    variant: str = "plain"
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """A conversation up to the open assistant turn, and the one right reply to it."""

    family: str
    variant: str
    key: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    thinking: bool
    reply: Reply
    match: Match

    @property
    def answer(self) -> str:
        """The right text; for a tool case the right calls as one JSON line."""
        if self.match == "tools":
            return json.dumps([[call.name, dict(call.arguments)] for call in self.reply.tool_calls])
        return self.reply.text

    def check(self, given: Reply) -> bool:
        """Whether `given` is right. Reasoning is not judged, only that it did not leak."""
        if self.match == "tools":
            return given.tool_calls == self.reply.tool_calls
        if given.tool_calls:
            return False
        if self.match == "json":
            return _same_record(given.text, self.reply.text)
        return given.text.strip() == self.reply.text


def user(text: str) -> Message:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """A finished assistant message without reasoning or calls."""
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    """A system message."""
    return {"role": "system", "content": text}


def operands(*parts: object) -> str:
    """Join operands into a key; lists keep their order."""
    return "|".join(_flat(part) for part in parts)


def split_of(family: str, key: str) -> Literal["train", "heldout"]:
    """The side of the split on which these operands fall, from a hash of them alone."""
    digest = hashlib.sha256(f"{family}\n{key}".encode()).digest()
    return "heldout" if digest[0] % HELDOUT_PARTS == 0 else "train"


def _flat(part: object) -> str:
    if isinstance(part, Sequence) and not isinstance(part, str):
        return ",".join(str(item) for item in part)
    return str(part)


def _same_record(given: str, wanted: str) -> bool:
    try:
        return bool(json.loads(given) == json.loads(wanted))
    except ValueError:
        return False
