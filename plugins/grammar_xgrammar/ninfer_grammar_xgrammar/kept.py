"""Compiled parts that are kept, the least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

CACHE_BYTES = 256 << 20


@dataclass(slots=True)
class Kept:
    """By the parts' JSON: what was compiled, and its bytes. Not thread safe."""

    parts: OrderedDict[str, tuple[Any, int]] = field(default_factory=OrderedDict)
    bytes: int = 0

    def get(self, key: str) -> tuple[Any, int] | None:
        if key in self.parts:
            self.parts.move_to_end(key)
        return self.parts.get(key)

    def put(self, key: str, compiled: Any, size: int) -> None:
        _, before = self.parts.pop(key, (None, 0))
        self.parts[key] = (compiled, size)
        self.bytes += size - before
        while self.bytes > CACHE_BYTES and len(self.parts) > 1:
            _, (_, gone) = self.parts.popitem(last=False)
            self.bytes -= gone
