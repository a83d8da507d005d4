"""One schema document: where its parts are, and refusals that name them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote

from ninfer_core.contract.errors import InvalidSchema

MAX_DEPTH = 64
MAX_NODES = 16_384
MAX_CHARS = 1_000_000


class Node(NamedTuple):
    """A subschema by its pointer; ``negated``: its opposite."""

    pointer: str
    negated: bool = False

    def opposite(self) -> Node:
        return Node(self.pointer, not self.negated)


Conj = tuple[Node, ...]
"""Subschemas that hold together; of none of them, anything holds."""

NEVER = Node("!never")
"""A subschema that nothing satisfies; it stands in no document."""


def joined(*parts: Conj) -> Conj:
    """All of them, each once, in order."""
    return tuple(dict.fromkeys(node for part in parts for node in part))


def below(pointer: str, *keys: object) -> str:
    """The pointer of a member (RFC 6901)."""
    return pointer + "".join(f"/{str(k).replace('~', '~0').replace('/', '~1')}" for k in keys)


class Document:
    """``param`` names the field in refusals. Raises InvalidSchema for what is too large."""

    def __init__(self, root: Any, param: str) -> None:
        self.root = root
        self.param = param
        self._anchors: dict[str, str] = {}
        self._scan()

    def fail(self, kind: str, pointer: str, why: str) -> NoReturn:
        """``kind``: invalid | unsupported | unsatisfiable."""
        place = f" at {pointer!r}" if pointer else ""
        raise InvalidSchema(
            f"{self.param}{place} {why}",
            pointer=pointer,
            param=self.param,
            code=f"{kind}_json_schema",
        )

    def at(self, pointer: str) -> Any:
        """The value at a pointer that stands in the document."""
        value = self.root
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            value = value[int(key)] if isinstance(value, list) else value[key]
        return value

    def target(self, reference: Any, pointer: str) -> str:
        """Where a ``$ref`` leads."""
        if not isinstance(reference, str):
            self.fail("invalid", pointer, "must be text")
        place, _, fragment = reference.partition("#")
        root_id = self.root.get("$id") if isinstance(self.root, Mapping) else None
        if place and place != str(root_id or "").partition("#")[0]:
            self.fail("unsupported", pointer, f"refers to {reference!r}, outside this schema")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            if fragment not in self._anchors:
                self.fail("invalid", pointer, f"refers to {reference!r}, which is no anchor here")
            return self._anchors[fragment]
        try:
            self.at(fragment)
        except (KeyError, IndexError, ValueError, TypeError):
            self.fail("invalid", pointer, f"refers to {reference!r}, and nothing is there")
        return fragment

    def _scan(self) -> None:
        """Bounds, and the anchors."""
        chars = 0
        for count, (pointer, value, depth) in enumerate(_walk(self.root)):
            chars += len(value) if isinstance(value, str) else 0
            if isinstance(value, float) and not math.isfinite(value):
                self.fail("invalid", pointer, "is a number that JSON or binary64 does not have")
            if depth > MAX_DEPTH:
                self.fail("unsupported", pointer, f"is nested deeper than {MAX_DEPTH} levels")
            if count > MAX_NODES or chars > MAX_CHARS:
                self.fail("unsupported", "", f"is too large: more than {MAX_NODES} values")
            named = isinstance(value, Mapping) and isinstance(value.get("$anchor"), str)
            if named and not re.search("/(const|enum)(/|$)", pointer):
                self._anchors.setdefault(value["$anchor"], pointer)


def _walk(root: Any) -> Iterator[tuple[str, Any, int]]:
    stack: list[tuple[str, Any, int]] = [("", root, 0)]
    while stack:
        pointer, value, depth = stack.pop()
        yield pointer, value, depth
        if isinstance(value, Mapping):
            stack.extend((below(pointer, k), v, depth + 1) for k, v in value.items())
        elif isinstance(value, list):
            stack.extend((below(pointer, k), v, depth + 1) for k, v in enumerate(value))
