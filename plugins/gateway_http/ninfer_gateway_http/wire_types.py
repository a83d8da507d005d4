"""Types of fields whose values the engine's own input rules check: what the page says of them."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, WithJsonSchema

from ninfer_gateway_http.bodies import MOST_ENTRIES, Items, at_most

Schema = dict[str, Any]
_NULL: Final[Schema] = {"type": "null"}
_TEXT: Final[Schema] = {"type": "string"}


def between(low: float, high: float) -> Any:
    """Limits for the reader of the page; who checks them says why they are what they are."""
    return Field(json_schema_extra={"minimum": low, "maximum": high})


def at_least(low: float) -> Any:
    """As :func:`between`."""
    return Field(json_schema_extra={"minimum": low})


def _object(
    required: tuple[str, ...] = (), *, closed: bool = False, **properties: Schema
) -> Schema:
    schema: Schema = {"type": "object", "properties": properties, "required": list(required)}
    return {**schema, "additionalProperties": False} if closed else schema


def _or_null(schema: Schema) -> Any:
    return WithJsonSchema({"anyOf": [schema, _NULL], "default": None})


_PART: Final = _object(("type", "text"), type={"const": "text"}, text=_TEXT)
_CONTENT: Final[Schema] = {"anyOf": [_TEXT, {"type": "array", "items": _PART}]}
_CALL: Final = _object(
    ("id", "type", "function"),
    id=_TEXT,
    type={"const": "function"},
    function=_object(("name",), name={"type": "string", "minLength": 1}, arguments=_TEXT),
)
_MESSAGES: Final[tuple[Schema, ...]] = (
    _object(("role", "content"), role={"enum": ["system", "developer", "user"]}, content=_CONTENT),
    _object(
        ("role",),
        role={"const": "assistant"},
        content={"anyOf": [*_CONTENT["anyOf"], _NULL]},
        reasoning_content={"anyOf": [_TEXT, _NULL]},
        reasoning={"anyOf": [_TEXT, _NULL]},
        tool_calls={"type": "array", "items": _CALL},
    ),
    _object(("role", "content"), role={"const": "tool"}, content=_CONTENT, tool_call_id=_TEXT),
)
_FUNCTION: Final = _object(
    ("name",),
    name={"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
    description=_TEXT,
    parameters={"type": "object"},
    strict={"type": "boolean"},
)

Message = Annotated[dict[str, Any], WithJsonSchema({"anyOf": list(_MESSAGES)})]
Tool = Annotated[
    dict[str, Any],
    WithJsonSchema(_object(("type", "function"), type={"const": "function"}, function=_FUNCTION)),
]
ToolChoice = Annotated[
    str | dict[str, Any] | None,
    _or_null(
        {
            "anyOf": [
                {"enum": ["auto", "none", "required"]},
                _object(
                    ("type", "function"),
                    type={"const": "function"},
                    function=_object(("name",), name=_TEXT),
                ),
            ]
        }
    ),
]
ResponseFormat = Annotated[
    dict[str, Any] | None,
    _or_null(
        _object(
            ("type",),
            type={"enum": ["text", "json_object", "json_schema"]},
            json_schema=_object(
                ("schema",), name=_TEXT, schema={"type": "object"}, strict={"type": "boolean"}
            ),
        )
    ),
]
StructuredOutputs = Annotated[
    dict[str, Any] | None,
    _or_null(
        _object(
            closed=True,
            json={"type": "object"},
            json_object={"type": "boolean"},
            regex=_TEXT,
            choice={"type": "array", "items": _TEXT},
            grammar=_TEXT,
        )
    ),
]
Reasoning = Annotated[
    dict[str, Any] | None,
    _or_null(
        _object(
            closed=True,
            effort=_TEXT,
            max_tokens={"type": "integer", "minimum": 0},
            enabled={"type": "boolean"},
            exclude={"type": "boolean"},
        )
    ),
]
LogitBias = Annotated[
    Annotated[dict[str, float], at_most(MOST_ENTRIES)] | None,
    _or_null(
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,19}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            "maxProperties": 1024,
        }
    ),
]
Stop = Annotated[
    str | Items[str] | None,
    _or_null(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "maxItems": 16, "items": {"type": "string", "minLength": 1}},
            ]
        }
    ),
]
_IDS: Final[Schema] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
Ids = Annotated[Items[int], WithJsonSchema(_IDS)]
TokenIds = Annotated[Items[int] | None, _or_null(_IDS)]
