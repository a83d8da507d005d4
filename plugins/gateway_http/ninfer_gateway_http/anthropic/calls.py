"""Tool calls and their results in a conversation: each call has one result in the next turn."""

from __future__ import annotations

from ninfer_core.inputs.fields import Field


class OpenCalls:
    """Follows a conversation block by block. Its errors are InvalidPrompt and name the id."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._open: dict[str, Field] = {}
        self._turn: dict[str, Field] = {}
        self._role = ""

    def turn(self, role: str) -> None:
        """A message of ``role`` begins; consecutive messages of one role are one turn."""
        if role == self._role:
            return
        if role == "assistant":
            self.end()
            self._turn = {}
        self._role = role

    def call(self, block: Field) -> str:
        """A ``tool_use`` block; returns its id."""
        call = block.child("id")
        if not call.need(str):
            call.fail("is empty")
        if call.value in self._ids:
            call.fail(f"{call.value!r} is taken by an earlier tool_use block")
        self._ids.add(call.value)
        self._open[call.value] = self._turn[call.value] = call
        return str(call.value)

    def result(self, block: Field) -> str:
        """A ``tool_result`` block; returns the id of its call."""
        call = block.child("tool_use_id")
        call.need(str)
        if self._open.pop(call.value, None) is None:
            if call.value in self._turn:
                call.fail(f"{call.value!r} has a tool_result block already")
            call.fail(f"{call.value!r} is the id of no tool_use block in the turn before")
        return str(call.value)

    def end(self) -> None:
        """The turn that could answer is over."""
        for name, call in self._open.items():
            call.fail(
                f"{name!r} has no tool_result block in the next message",
                "answer each tool_use block with one tool_result block",
            )
