"""Typed access to JSON values, with errors that name the place."""

from __future__ import annotations

from typing import Any, NoReturn

from ninfer_core.contract.errors import InvalidPrompt, InvalidRequest

JSON_NAMES = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def kind_of(value: Any) -> str:
    """What ``value`` is, in words of JSON."""
    return JSON_NAMES.get(type(value), type(value).__name__)


class Field:
    """A value and where it stands. ``error`` is the class that its faults are reported as."""

    def __init__(
        self, value: Any, path: str, error: type[InvalidPrompt | InvalidRequest] = InvalidPrompt
    ) -> None:
        self.value = value
        self.path = path
        self._error = error

    def fail(self, why: str, hint: str | None = None) -> NoReturn:
        raise self._error(f"{self.path} {why}", param=self.path, hint=hint)

    def need(self, kind: type, wanted: str | None = None) -> Any:
        """The value, which must be of the JSON type ``kind``."""
        if type(self.value) is not kind:
            self.fail(f"is {kind_of(self.value)}; it must be {wanted or JSON_NAMES[kind]}")
        return self.value

    def child(self, key: str) -> Field:
        """The member ``key`` of an object, None where it is absent."""
        return Field(self.value.get(key), f"{self.path}.{key}", self._error)

    def children(self) -> list[Field]:
        """The elements of a list."""
        return [
            Field(value, f"{self.path}[{index}]", self._error)
            for index, value in enumerate(self.need(list))
        ]
