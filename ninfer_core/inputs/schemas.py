"""A structural look at JSON schemas: enough to tell a schema from a mistake, with the place."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from ninfer_core.contract.errors import InvalidSchema
from ninfer_core.inputs.fields import kind_of

TYPES = frozenset("string integer number boolean object array null".split())
MAX_DEPTH = 64
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMAS = (
    *("additionalProperties", "items", "contains", "not", "if", "then", "else"),
    *("propertyNames", "unevaluatedItems", "unevaluatedProperties"),
)
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def check_schema(schema: Any, param: str) -> None:
    """Raises InvalidSchema with a JSON pointer where the keywords of ``schema`` are malformed."""
    _Checker(param).check(schema, "", 0)


def check_object_schema(schema: Any, param: str) -> None:
    """As `check_schema`, for arguments of a function: the root must describe an object."""
    check_schema(schema, param)
    if isinstance(schema, dict) and schema and schema.get("type", "object") != "object":
        raise InvalidSchema(
            f"{param} at '/type' is {schema['type']!r}; arguments are an object",
            pointer="/type",
            param=param,
        )


class _Checker:
    def __init__(self, param: str) -> None:
        self._param = param

    def check(self, schema: Any, pointer: str, depth: int) -> None:
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            self._fail(pointer, f"is {kind_of(schema)}; a schema is an object")
        if depth > MAX_DEPTH:
            self._fail(pointer, f"is nested deeper than {MAX_DEPTH} levels")
        self._check_values(schema, pointer)
        for key in _MAPS:
            if key in schema:
                self._check_map(schema[key], f"{pointer}/{key}", depth)
        for key in _LISTS:
            if key in schema:
                self._check_list(schema[key], f"{pointer}/{key}", depth)
        for key in _SCHEMAS:
            if key in schema:
                self.check(schema[key], f"{pointer}/{key}", depth + 1)

    def _check_map(self, value: Any, pointer: str, depth: int) -> None:
        if not isinstance(value, dict):
            self._fail(pointer, f"is {kind_of(value)}; it must map names to schemas")
        for name, schema in value.items():
            self.check(schema, f"{pointer}/{_escaped(name)}", depth + 1)

    def _check_list(self, value: Any, pointer: str, depth: int) -> None:
        if not isinstance(value, list) or not value:
            self._fail(pointer, "must be a list of schemas with at least one entry")
        for index, schema in enumerate(value):
            self.check(schema, f"{pointer}/{index}", depth + 1)

    def _check_values(self, schema: dict[str, Any], pointer: str) -> None:
        if "type" in schema:
            self._check_type(schema["type"], f"{pointer}/type")
        if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
            self._fail(f"{pointer}/enum", "must be a list with at least one value")
        if "required" in schema and not _is_name_list(schema["required"]):
            self._fail(f"{pointer}/required", "must be a list of property names")
        if "$ref" in schema and not isinstance(schema["$ref"], str):
            self._fail(f"{pointer}/$ref", "must be text")
        if "pattern" in schema:
            self._check_pattern(schema["pattern"], f"{pointer}/pattern")
        for key in _COUNTS:
            if key in schema and not (type(schema[key]) is int and schema[key] >= 0):
                self._fail(f"{pointer}/{key}", "must be a whole number of at least 0")

    def _check_type(self, value: Any, pointer: str) -> None:
        names = value if isinstance(value, list) else [value]
        wrong = [name for name in names if not isinstance(name, str) or name not in TYPES]
        if wrong or not names:
            shown = repr(wrong[0]) if wrong else "empty"
            self._fail(pointer, f"is {shown}; types are {', '.join(sorted(TYPES))}")

    def _check_pattern(self, value: Any, pointer: str) -> None:
        if not isinstance(value, str):
            self._fail(pointer, f"is {kind_of(value)}; it must be a regular expression as text")

    def _fail(self, pointer: str, why: str) -> NoReturn:
        raise InvalidSchema(
            f"{self._param} at {pointer!r} {why}", pointer=pointer, param=self._param
        )


def _is_name_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _escaped(name: str) -> str:
    """A member name in a JSON pointer (RFC 6901)."""
    return re.sub("[~/]", lambda m: "~0" if m[0] == "~" else "~1", name)
