"""The wanted form of the answer."""

from __future__ import annotations

from typing import Any

from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.requests import ResponseFormat
from ninfer_core.inputs.fields import Field
from ninfer_core.inputs.schemas import check_schema


def parse_response_format(value: Any, field: str = "response_format") -> ResponseFormat:
    """``{"type": "text" | "json_object" | "json_schema", …}``; null is text.

    ``json_schema`` holds ``{"name": …, "schema": …, "strict": …}``. Raises InvalidRequest, or
    InvalidSchema for a malformed schema.
    """
    if value is None:
        return ResponseFormat()
    root = Field(value, field, InvalidRequest)
    root.need(dict)
    kind = root.child("type").need(str)
    if kind == "text":
        return ResponseFormat()
    if kind == "json_object":
        return ResponseFormat(kind="json_object")
    if kind != "json_schema":
        root.child("type").fail(f"is {kind!r}; it must be text, json_object or json_schema")
    return _json_schema(root.child("json_schema"))


def _json_schema(field: Field) -> ResponseFormat:
    given = field.need(dict)
    schema = field.child("schema")
    check_schema(schema.need(dict), schema.path)
    for key, wanted in (("name", str), ("strict", bool)):
        if given.get(key) is not None:
            field.child(key).need(wanted)
    strict = given.get("strict")
    return ResponseFormat(
        kind="json_schema",
        value=schema.value,
        name=given.get("name"),
        strict=True if strict is None else strict,
    )
