"""Checked access to untrusted JSON: every value is read through a `Node` that knows its path."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from ninfer_core.artifact.container import DAMAGED
from ninfer_core.artifact.errors import ArtifactError

MAX_INTEGER = (1 << 63) - 1
MAX_TEXT = 1024
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value and where it stands; each accessor returns the checked value or raises.

    ``mend`` is the advice that its errors, and those of its members, carry.
    """

    value: Any
    path: str
    mend: str = DAMAGED

    def fail(self, problem: str, mend: str | None = None) -> NoReturn:
        raise ArtifactError(self.path, problem, mend or self.mend)

    def fields(self, *required: str, optional: tuple[str, ...] = ()) -> dict[str, Node]:
        """The members of an object with exactly these keys; a missing or unknown key raises."""
        members = dict(self.members())
        missing = [name for name in required if name not in members]
        if missing:
            self.fail(f"field {missing[0]!r} is missing")
        unknown = [name for name in members if name not in required and name not in optional]
        if unknown:
            self.fail(
                f"unknown field {unknown[0]!r}",
                "the file was made by another version of ninfer: convert the checkpoint again",
            )
        return members

    def members(self) -> Iterator[tuple[str, Node]]:
        """(key, member) of an object with free keys."""
        for key, value in self.mapping().items():
            yield key, self._member(key, value)

    def find(self, key: str) -> Node | None:
        """A member that may be absent or null."""
        value = self.mapping().get(key)
        return None if value is None else self._member(key, value)

    def need(self, key: str) -> Node:
        """A member that must be there; null counts as absent."""
        return self.find(key) or self._member(key, None).fail("is missing")

    def _member(self, key: str, value: Any) -> Node:
        return Node(value, f"{self.path}.{key}" if self.path else key, self.mend)

    def mapping(self) -> dict[str, Any]:
        if type(self.value) is not dict:
            self.fail(f"expected an object, found {_kind(self.value)}")
        return self.value

    def elements(self, maximum: int | None = None) -> list[Node]:
        """The elements of an array of at most ``maximum`` entries."""
        if type(self.value) is not list:
            self.fail(f"expected an array, found {_kind(self.value)}")
        if maximum is not None and len(self.value) > maximum:
            self.fail(f"has {len(self.value)} entries, at most {maximum} are allowed")
        return [Node(value, f"{self.path}[{i}]", self.mend) for i, value in enumerate(self.value)]

    def text(self) -> str:
        """A non-empty printable string of at most 1024 characters."""
        if type(self.value) is not str:
            self.fail(f"expected a string, found {_kind(self.value)}")
        if not 0 < len(self.value) <= MAX_TEXT or not self.value.isprintable():
            self.fail(f"expected 1 to {MAX_TEXT} printable characters")
        return self.value

    def digest(self) -> str:
        """A SHA-256 as 64 lower-case hexadecimal digits."""
        text = self.text()
        if len(text) != 64 or set(text) - set("0123456789abcdef"):
            self.fail("expected 64 lower-case hexadecimal digits")
        return text

    def integer(self, minimum: int = 0, maximum: int = MAX_INTEGER) -> int:
        if type(self.value) is not int:
            self.fail(f"expected an integer, found {_kind(self.value)}")
        if not minimum <= self.value <= maximum:
            self.fail(
                f"expected an integer from {minimum} to {maximum}, found {str(self.value)[:40]}"
            )
        return self.value

    def number(self, minimum: float = 0.0, maximum: float = math.inf) -> float:
        """A finite number between the bounds."""
        if type(self.value) not in (int, float):
            self.fail(f"expected a number, found {_kind(self.value)}")
        if not minimum <= self.value <= maximum:
            self.fail(
                f"expected a number from {minimum} to {maximum}, found {str(self.value)[:40]}"
            )
        return float(self.value)

    def flag(self) -> bool:
        if type(self.value) is not bool:
            self.fail(f"expected true or false, found {_kind(self.value)}")
        return self.value


def parse_json(data: bytes, field: str, mend: str = DAMAGED) -> Any:
    """Strict JSON: UTF-8, unique keys, finite numbers, bounded depth; else `ArtifactError`."""
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_float=_finite,
            parse_constant=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise ArtifactError(field, f"is not valid JSON ({_one_line(error)})", mend) from error
    _check_depth(value, field, mend)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = counts.most_common(1)[0][0]
        raise ValueError(f"the key {repeated[:80]!r} occurs twice in one object")
    return members


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


def _check_depth(value: Any, field: str, mend: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise ArtifactError(field, f"nests deeper than {MAX_DEPTH} levels", mend)


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from node.values()
    elif isinstance(node, list):
        yield from node


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else f"the number {str(value)[:40]}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
