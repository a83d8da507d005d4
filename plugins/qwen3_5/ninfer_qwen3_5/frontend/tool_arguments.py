"""The arguments of one call as JSON fragments, while the parameters arrive."""

from __future__ import annotations

import json

from ninfer_qwen3_5.frontend.deltas import Rope, joined
from ninfer_qwen3_5.frontend.tool_values import STRING, encode_text, encode_value


class ArgumentWriter:
    """Writes one JSON object. Text is passed on as it comes, other types when they are whole.

    Exactly one line break is removed from either end of a value. ``fork`` copies in O(1).
    """

    __slots__ = ("_held", "_line_break", "_opened", "_types", "names")

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self._types = STRING
        self._opened = False
        self._line_break = False
        self._held: Rope = None

    def fork(self) -> ArgumentWriter:
        twin = ArgumentWriter()
        twin.names, twin._types, twin._held = self.names, self._types, self._held
        twin._opened, twin._line_break = self._opened, self._line_break
        return twin

    def open(self, name: str, types: frozenset[str]) -> str:
        """Begin parameter ``name``."""
        lead = ", " if self.names else "{"
        self.names |= {name}
        self._types, self._opened, self._line_break, self._held = types, False, False, None
        quote = '"' if types == STRING else ""
        return f"{lead}{json.dumps(name, ensure_ascii=False)}: {quote}"

    def write(self, text: str) -> str:
        """Go on with the value."""
        text = self._without_leading_break(text)
        if not text:
            return ""
        text = "\n" * self._line_break + text
        self._line_break = text.endswith("\n")
        text = text.removesuffix("\n")
        if self._types == STRING:
            return encode_text(text)
        self._held = (self._held, text)
        return ""

    def close(self) -> str:
        """End the value."""
        return '"' if self._types == STRING else encode_value(joined(self._held), self._types)

    def finish(self) -> str:
        """End the object."""
        return "}" if self.names else "{}"

    def _without_leading_break(self, text: str) -> str:
        if not self._opened and text:
            self._opened = True
            return text.removeprefix("\n")
        return text
