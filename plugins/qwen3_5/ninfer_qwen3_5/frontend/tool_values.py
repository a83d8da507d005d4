"""From the text of a tool-call parameter to JSON, of a type that its schema permits."""

from __future__ import annotations

import json
import re

STRING = frozenset({"string"})
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"(-?[0-9]+)\.0+")


def encode_text(text: str) -> str:
    """``text`` as the inside of a JSON string; encodings of parts join to that of the whole."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def encode_value(raw: str, types: frozenset[str]) -> str:
    """``raw`` as JSON of one of ``types``, a string where it fits none of them.

    Numbers, objects and arrays keep the model's own spelling, so that no digit is lost. Where a
    string is permitted among others, the text is a string only if it is nothing else.
    """
    text = raw.strip()
    if "null" in types and text == "null":
        return text
    if "boolean" in types and text.lower() in ("true", "false"):
        return text.lower()
    number = _number(text, types)
    if number is not None:
        return number
    if types & {"object", "array"} and _json_type(text) in types:
        return text
    return json.dumps(raw, ensure_ascii=False)


def _number(text: str, types: frozenset[str]) -> str | None:
    if not types & {"integer", "number"} or _NUMBER.fullmatch(text) is None:
        return None
    if "number" in types:
        return text
    whole = _WHOLE.fullmatch(text)
    if whole is not None:
        return whole[1]
    return text if text.lstrip("-").isdigit() or float(text).is_integer() else None


def _json_type(text: str) -> str | None:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return type_name(value)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def type_name(value: object) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object"}
    return "null" if value is None else names.get(type(value), "array")
