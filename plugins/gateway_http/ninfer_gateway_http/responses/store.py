"""Stored responses: the latest ones, within a number and a size."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ninfer_gateway_http.responses.items import Item


class Said(NamedTuple):
    """What went into a response and what came out of it."""

    inputs: list[Item]
    outputs: list[Item]


@dataclass(slots=True, eq=False)
class Turn:
    """One response as history to others: its items as JSON, and the turn before it.

    ``root`` is the id of the conversation's first response. ``holders`` are the turn's own entry
    and the turns that follow; it is counted and its items are found while there are any, so a
    deleted response stays history to those that went on from it.
    """

    root: str
    parent: Turn | None
    data: bytes
    holders: int = field(default=0)

    @classmethod
    def of(
        cls, root: str, parent: Turn | None, inputs: Sequence[Item], outputs: Sequence[Item]
    ) -> Turn:
        return cls(root, parent, as_json([inputs, outputs]))

    def said(self) -> Said:
        return Said(*json.loads(self.data))

    def history(self) -> list[Item]:
        """The items of all turns up to this one, oldest first."""
        turns: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return [item for turn in reversed(turns) for part in turn.said() for item in part]

    def used(self) -> list[Item]:
        """What this turn's response was made from: the turns before and its own input."""
        before = self.parent.history() if self.parent else []
        return [*before, *self.said().inputs]


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored response as it is sent, and its turn."""

    data: bytes
    turn: Turn
    status: str
    background: bool


class ResponseStore:
    """Responses by id. When a bound is passed the least recently used go first.

    All is kept as JSON text, so that the bound in bytes is the memory that it takes but for a few
    hundred bytes each. A turn that several conversations share counts once. For use on the event
    loop alone, but for :meth:`item`.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self.bytes = 0
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._turns: dict[str, Turn] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> Entry | None:
        """The response ``name``, which counts as used now."""
        entry = self._entries.get(name)
        if entry is not None:
            self._entries.move_to_end(name)
        return entry

    def item(self, name: str) -> Item | None:
        """An item of any stored turn, by its id."""
        turn = self._turns.get(name)
        said = turn.said() if turn else Said([], [])
        return next((item for part in said for item in part if item["id"] == name), None)

    def put(self, response: dict[str, Any], turn: Turn) -> None:
        """Store ``response`` under its id in place of an older state of it."""
        name = response["id"]
        self.delete(name)
        data = as_json(response)
        self._entries[name] = Entry(data, turn, response["status"], response["background"])
        self.bytes += len(data)
        self._hold(turn)
        while len(self._entries) > self.max_responses or self.bytes > self.max_bytes:
            self.delete(next(iter(self._entries)))

    def delete(self, name: str) -> bool:
        """Forget ``name``; whether it was there. Its items stay while other turns go on from it."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return False
        self.bytes -= len(entry.data)
        self._release(entry.turn)
        return True

    def _hold(self, turn: Turn | None) -> None:
        """Count ``turn`` for its entry, and with it the turns before that are not counted yet."""
        while turn is not None:
            turn.holders += 1
            if turn.holders > 1:
                return
            self.bytes += len(turn.data)
            self._turns |= dict.fromkeys(_names(turn), turn)
            turn = turn.parent

    def _release(self, turn: Turn | None) -> None:
        while turn is not None:
            turn.holders -= 1
            if turn.holders:
                return
            self.bytes -= len(turn.data)
            for name in _names(turn):
                if self._turns.get(name) is turn:
                    del self._turns[name]
            turn = turn.parent


def as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _names(turn: Turn) -> list[str]:
    return [item["id"] for part in turn.said() for item in part]
