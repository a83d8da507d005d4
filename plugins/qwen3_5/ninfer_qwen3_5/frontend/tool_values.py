"""From the text of a tool-call parameter to JSON, as the tool's schema wants it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

STRING = frozenset({"string"})
_JSON_TYPES = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"(-?[0-9]+)\.0+")
_MAX_DEPTH = 32


def parameter_types(parameters: Any) -> dict[str, frozenset[str]]:
    """JSON types that each property of an object schema permits; ``string`` where it says none."""
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {
        str(name): _types(schema, parameters, 0) or STRING for name, schema in properties.items()
    }


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
    return _type_name(value)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    """Every type that ``schema`` mentions, through references and combinations."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    declared = schema.get("type")
    listed = declared if isinstance(declared, list) else [declared]
    found = {name for name in listed if isinstance(name, str)} & _JSON_TYPES
    if not found:
        found = _implied(schema, root, depth)
    if schema.get("nullable") is True:
        found.add("null")
    return frozenset(found)


def _implied(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> set[str]:
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return {_type_name(value) for value in values}
    branches = [
        branch
        for keyword in ("anyOf", "oneOf", "allOf")
        if isinstance(schema.get(keyword), list)
        for branch in schema[keyword]
    ]
    if isinstance(schema.get("$ref"), str):
        branches.append(_resolved(schema["$ref"], root))
    found: set[str] = set()
    return found.union(*(_types(branch, root, depth + 1) for branch in branches))


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    """The target of a reference within the schema (RFC 6901), None for any other."""
    target: Any = root
    if not reference.startswith("#"):
        return None
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        target = target.get(key) if isinstance(target, Mapping) else None
    return target


def _type_name(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object"}
    return "null" if value is None else names.get(type(value), "array")
