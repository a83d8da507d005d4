from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_qwen3_5.frontend.tool_values import encode_text, encode_value, parameter_types

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
        ({"$ref": "https://example.org/x"}, {"string"}),
        ({"$ref": "#/properties/p"}, {"string"}),
        ({}, {"string"}),
        (True, {"string"}),
        ({"type": "strange"}, {"string"}),
        ({"type": [{"a": 1}, "null"]}, {"null"}),
    ],
)
def test_types_of_a_schema(schema, types):
    assert types_of(schema, **{"$defs": {"a/b": {"type": "integer"}}}) == types


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
