from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_qwen3_5.frontend.tool_types import parameter_types
from ninfer_qwen3_5.frontend.tool_values import encode_text, encode_value

ALL = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})


def types_of(schema, **root):
    return parameter_types({"properties": {"p": schema}, **root})["p"]


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"oneOf": [{"type": "object"}, {"anyOf": [{"type": "array"}]}]}, {"object", "array"}),
        ({"allOf": [{"type": "number"}, {"minimum": 3}]}, {"number"}),
        ({"enum": [1, "a", None, 2.5, True, [], {}]}, ALL),
        ({"const": False}, {"boolean"}),
        ({"$ref": "#/$defs/a~1b"}, {"integer"}),
        ({"$ref": "#/$defs/missing"}, {"string"}),
        ({"$ref": "#/%24defs/a~1b"}, {"integer"}),
        ({"$ref": "#whole"}, {"integer"}),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": ["string", "null"]}]}, {"string"}),
        ({"allOf": [{"type": "number"}, {"type": ["integer", "null"]}]}, {"integer"}),
        ({"if": {"type": "integer"}, "then": {"minimum": 1}, "else": False}, {"integer"}),
        ({"if": {"type": "null"}, "else": {"type": "array"}}, {"null", "array"}),
        (
            {"type": ["string", "null"], "anyOf": [{"type": "null"}, {"minLength": 2}]},
            {"string", "null"},
        ),
        ({"not": {"type": ["string", "object"]}}, ALL - {"string", "object"}),
        ({"$ref": "https://example.org/x"}, {"string"}),
        ({"$ref": "#/properties/p"}, {"string"}),
        ({}, {"string"}),
        (True, {"string"}),
        ({"type": "strange"}, {"string"}),
        ({"type": [{"a": 1}, "null"]}, {"null"}),
    ],
)
def test_types_of_a_schema(schema, types):
    defs = {"a/b": {"type": "integer"}, "c": {"$anchor": "whole", "type": "integer"}}
    assert types_of(schema, **{"$defs": defs}) == types


DAYS = {"properties": {"days": {"type": "integer"}}}


@pytest.mark.parametrize(
    "parameters",
    [
        DAYS,
        {"$ref": "#/$defs/w", "$defs": {"w": DAYS}},
        {"$ref": "#w", "$defs": {"w": {"$anchor": "w", **DAYS}}},
        {"anyOf": [DAYS]},
        {"oneOf": [DAYS, {"properties": {"days": {"type": "integer", "minimum": 3}}}]},
        {"allOf": [{"properties": {"days": {"type": ["integer", "string"]}}}, DAYS]},
        {"properties": {"days": {"type": ["integer", "null"]}}, "allOf": [{"$ref": "#/$defs/w"}],
         "$defs": {"w": DAYS}},
        {"if": {"required": ["hours"]}, "then": DAYS, "else": DAYS},
        {"dependentSchemas": {"hours": DAYS}},
        DAYS | {"anyOf": [{"properties": {"days": {"const": "one"}}}, {"minProperties": 1}]},
    ],
)  # fmt: skip
def test_properties_are_found_wherever_the_root_applies_them(parameters):
    assert parameter_types(parameters) == {"days": {"integer"}}


def test_a_schema_that_holds_itself_ends():
    node = {"properties": {"v": {"type": "integer"}, "kids": {"$ref": "#/$defs/kids"}}}
    defs = {"n": node, "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}}}
    assert parameter_types({"$ref": "#/$defs/n", "$defs": defs}) == {
        "v": {"integer"}, "kids": {"array"},
    }  # fmt: skip
    assert parameter_types({"allOf": [{"$ref": "#"}], **DAYS}) == {"days": {"integer"}}
    assert parameter_types({"anyOf": [{"$ref": "#"}] * 100, **DAYS}) == {"days": {"integer"}}


def test_branches_of_branches_are_looked_at_once():
    defs = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"} for _ in range(9)]} for i in range(9)}
    defs["d9"] = DAYS
    assert parameter_types({"$ref": "#/$defs/d0", "$defs": defs}) == {"days": {"integer"}}


@pytest.mark.parametrize("parameters", [None, {}, {"properties": []}, "x", {"type": "object"}])
def test_a_schema_without_properties_types_nothing(parameters):
    assert parameter_types(parameters) == {}


@pytest.mark.parametrize(
    ("raw", "types", "encoded"),
    [
        ("5", {"integer"}, "5"),
        (" -12 \n", {"integer"}, "-12"),
        ("5.0", {"integer"}, "5"),
        ("5.5", {"integer"}, '"5.5"'),
        ("1e3", {"integer"}, "1e3"),
        ("1e999999999", {"integer"}, '"1e999999999"'),
        ("12345678901234567890123", {"integer"}, "12345678901234567890123"),
        ("0.10000000000000000001", {"number"}, "0.10000000000000000001"),
        ("05", {"integer"}, '"05"'),
        ("five", {"integer"}, '"five"'),
        ("NaN", {"number"}, '"NaN"'),
        ("٣", {"integer"}, '"٣"'),
        ("True", {"boolean"}, "true"),
        ("false", {"boolean", "string"}, "false"),
        ("yes", {"boolean"}, '"yes"'),
        ("null", {"string", "null"}, "null"),
        ("null", {"integer"}, '"null"'),
        ("None", {"string", "null"}, '"None"'),
        ("7", {"integer", "string"}, "7"),
        ("seven", {"integer", "string"}, '"seven"'),
        ('{"a": [1,\n 2.50]}', {"object"}, '{"a": [1,\n 2.50]}'),
        ("[1, 2]", {"array"}, "[1, 2]"),
        ("[1, 2]", {"object"}, '"[1, 2]"'),
        ('{"a": NaN}', {"object"}, '"{\\"a\\": NaN}"'),
        ("{'a': 1}", {"object"}, "\"{'a': 1}\""),
        ('{"a": 1}', {"object", "string"}, '{"a": 1}'),
        ('"x"', {"object"}, '"\\"x\\""'),
        ("[" * 100_000, {"array"}, json.dumps("[" * 100_000)),
    ],
)
def test_values_follow_their_types(raw, types, encoded):
    assert encode_value(raw, frozenset(types)) == encoded
    json.loads(encoded)


@given(st.lists(st.text(max_size=5)))
def test_encodings_of_parts_join_to_the_encoding_of_the_whole(parts):
    joined = "".join(encode_text(part) for part in parts)
    assert json.loads(f'"{joined}"') == "".join(parts)
