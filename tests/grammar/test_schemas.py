"""Lowered schemas against jsonschema, which shares nothing with them."""

from __future__ import annotations

import json
import math
import random
from decimal import Decimal

import jsonschema
import numpy as np
import pytest
from _random_schemas import Generator

from ninfer_core.contract.errors import InvalidSchema
from ninfer_core.contract.frontend import ColumnState
from tests.grammar.conftest import END


def part(schema, closed=False):
    return {"kind": "json_schema", "schema": schema, "param": "schema", "closed": closed}


def drawn(matcher, rng, most=400):
    """A text that the masks allow, token by token; None if it does not end in time."""
    words, text = np.zeros((1, 9), dtype=np.uint32), bytearray()
    for _ in range(most):
        assert matcher.fill((), words) == (ColumnState.READY,)
        allowed = np.flatnonzero(np.unpackbits(words[0].view(np.uint8), bitorder="little"))
        assert allowed.max() <= 261
        plain = [t for t in allowed.tolist() if 0x20 <= t < 0x7F or t >= END] or allowed.tolist()
        token = END if END in plain and rng.random() < 0.5 else rng.choice(plain)
        assert matcher.accept([token]) == 1
        if token == END:
            return text.decode()
        text += {260: b"ab", 261: b'{"'}.get(token, bytes([token & 255]))
    return None


def modest(value):
    """Whether its numbers have few digits: whole numbers are produced with 18 at most."""
    if isinstance(value, dict | list):
        return all(map(modest, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int | float) or abs(value) < 1e15


def changed(value, rng):
    """``value`` with one thing about it different."""
    if isinstance(value, dict) and value:
        name = rng.choice(list(value))
        rest = {k: v for k, v in value.items() if k != name}
        return rng.choice([rest, {**value, name: changed(value[name], rng)}, {**value, "zz": 1}])
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        copy = [changed(v, rng) if i == place else v for i, v in enumerate(value)]
        return rng.choice([copy, value[:-1], [*value, value[0]]])
    if isinstance(value, str):
        return rng.choice([value + "a", value[:-1], 1, None])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return rng.choice([value + 1, value - 100, 0.5, "a"])
    return rng.choice([True, None, 3, "a", [], {}])


@pytest.mark.parametrize("seed", range(40))
def test_what_the_masks_allow_is_valid_and_what_is_changed_is_judged_alike(matcher, accepts, seed):
    from _arranged import arranged

    from ninfer_grammar_xgrammar.schema.terms import canonical

    rng = random.Random(seed)
    schema = Generator(rng).schema()
    validator = jsonschema.Draft202012Validator(schema)
    for _ in range(4):
        text = drawn(matcher(part(schema)), rng)
        if text is None:
            continue
        value = json.loads(text)
        assert validator.is_valid(value), (schema, text)
        for _ in range(4):
            value = changed(value, rng)
            if not modest(value):
                break
            written = canonical(arranged(value, schema, closed=False))
            assert accepts(part(schema), written) == validator.is_valid(value), (schema, written)


POINT = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}}
SHARE = [
    ({"type": "integer"}, ["0", "-7", "123"], ["1.5", '"1"', "01", "true"]),
    ({"type": ["null", "boolean"]}, ["null", "true"], ["0", '"null"', "{}"]),
    ({"enum": [1, "a", [2, {"k": None}]]}, ["1", '"a"', '[2,{"k":null}]'], ["2", '"1"', "[2]"]),
    ({"const": {"a": 1, "b": "ß\n"}}, ['{"a":1,"b":"ß\\n"}'], ['{"a":1}', '{"a":1,"b":"ß"}']),
    ({"minimum": 1.5, "exclusiveMaximum": 3}, ["1.5", "2", "2.99", '"a"'], ["1.4", "3", "-2"]),
    ({"type": "string", "maxLength": 2}, ['""', '"é😀"'], ['"abc"', "1"]),
    ({"type": "string", "minLength": 2}, ['"ab"', '"abc\\n"'], ['"a"']),
    ({"type": "string", "pattern": "^a+$"}, ['"aa"'], ['"ab"', '""']),
    ({"type": "string", "pattern": "a"}, ['"xay"', '"\\na"'], ['"xy"']),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}], "type": "string"}, ['"b a"'], ['"a"', '"b"']),
    (
        {"items": {"type": "null"}, "maxItems": 2},
        ["[]", "[null,null]"],
        ["[1]", "[null,null,null]"],
    ),
    ({"prefixItems": [{"const": 1}], "items": False}, ["[]", "[1]"], ["[2]", "[1,1]"]),
    ({"contains": {"const": 1}, "maxContains": 1}, ["[1]", "[2,1]"], ["[]", "[1,1]"]),
    (POINT, ["{}", '{"x":1,"y":2}', '{"y":2,"z":"w"}'], ['{"x":"a"}', '{"y":1,"x":1}']),
    ({**POINT, "additionalProperties": False}, ['{"y":2}'], ['{"z":2}']),
    ({**POINT, "required": ["y"]}, ['{"y":2}'], ["{}", '{"x":1}']),
    (
        {**POINT, "required": ["y"], "minProperties": 2},
        ['{"x":1,"y":2}', '{"y":2,"z":1}'],
        ['{"y":2}'],
    ),
    ({"patternProperties": {"^a": {"const": 1}}}, ['{"ab":1,"b":2}'], ['{"ab":2}']),
    ({"propertyNames": {"maxLength": 1}}, ['{"a":1}'], ['{"ab":1}']),
    ({"dependentRequired": {"x": ["y"]}}, ['{"x":1,"y":2}', '{"y":1}', "3"], ['{"x":1}']),
    ({"anyOf": [{"type": "null"}, {"minimum": 5}]}, ["null", "5", '"a"'], ["4"]),
    ({"oneOf": [{"minimum": 5}, {"type": "integer"}]}, ["4", "5.5"], ["6", "4.5"]),
    (
        {
            "type": "object",
            "oneOf": [
                {"properties": {"k": {"const": k}, "v": {"const": [k]}}, "required": ["k", "v"]}
                for k in ("a", "b")
            ],
        },
        ['{"k":"b","v":["b"]}'],
        ['{"k":"b","v":["a"]}', "1"],
    ),
    ({"not": {"type": "object", "required": ["a"]}}, ["1", '{"b":1}'], ['{"a":1}']),
    ({"if": {"const": 1}, "then": False, "else": {"type": "integer"}}, ["2"], ["1", '"a"']),
    ({"$defs": {"n": {"type": "null"}}, "items": {"$ref": "#/$defs/n"}}, ["[null]"], ["[1]"]),
    (
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
        ['{"next":{"next":{}}}'],
        ['{"next":1}'],
    ),
    (
        {
            "properties": {"a": True},
            "anyOf": [{"properties": {"b": True}}],
            "unevaluatedProperties": False,
        },
        ['{"a":1,"b":1}'],
        ['{"c":1}'],
    ),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), SHARE, ids=lambda v: str(v)[:40])
def test_keyword_by_keyword(accepts, schema, valid, invalid):
    for text in valid:
        assert accepts(part(schema), text), text
    for text in invalid:
        assert not accepts(part(schema), text), text


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.3), (0, 1), (-2.5, 0.25), (5, 8.5), (-1, 0)])
def test_a_number_that_a_reader_rounds_to_an_open_bound_lies_outside(accepts, low, high):
    schema = part({"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high})
    seen = set()
    for bound, inward in ((low, high), (high, low)):
        within = math.nextafter(bound, inward)
        assert accepts(schema, f"{Decimal(repr(within)):f}") or bound == 0
        for digits in (15, 16, 17):
            for step in range(-9, 10):
                text = f"{Decimal(repr(bound)) + step * Decimal(10) ** -digits:f}"
                if accepts(schema, text):
                    seen.add(text)
                    assert low < float(text) < high, text
    assert len(seen) > 8


def test_a_strict_object_has_no_members_that_it_does_not_list(accepts):
    assert accepts(part(POINT, closed=True), '{"x":1}')
    assert not accepts(part(POINT, closed=True), '{"x":1,"z":2}')
    assert accepts(part({"type": "object"}, closed=True), '{"z":2}')


def test_white_space_cannot_run_on(accepts):
    """Blanks that are legal JSON, without end."""
    schema = part(POINT)
    assert accepts(schema, '{"x": 1, "y": 2}')
    for text in ('{"x":  1}', '{ "x":1}', '{"x":1 }', '{"x":\n1}', ' {"x":1}', '{"x":1} '):
        assert not accepts(schema, text), text
    assert not accepts({"kind": "json_object"}, '{"a":  1}')


REFUSED = [
    ({"type": "string", "format": "uuid"}, "/format", "unsupported"),
    ({"properties": {"a/b": {"multipleOf": 2}}}, "/properties/a~1b/multipleOf", "unsupported"),
    ({"type": "array", "uniqueItems": True}, "/uniqueItems", "unsupported"),
    ({"items": [{"type": "null"}]}, "/items", "unsupported"),
    ({"$ref": "http://example.com/s"}, "/$ref", "unsupported"),
    ({"$ref": "#/$defs/none"}, "/$ref", "invalid"),
    ({"$ref": "#"}, "", "invalid"),
    ({"not": {"additionalProperties": {"type": "null"}}}, "/not", "unsupported"),
    ({"pattern": "(?=a)b"}, "/pattern", "unsupported"),
    ({"pattern": "(a"}, "/pattern", "invalid"),
    ({"allOf": [{"type": "strange"}]}, "/allOf/0/type", "invalid"),
    ({"properties": []}, "/properties", "invalid"),
    ({"minLength": -1}, "/minLength", "invalid"),
    ({"const": {"a": [math.nan]}}, "/const/a/0", "invalid"),
    ({"enum": [1, -math.inf]}, "/enum/1", "invalid"),
    ({"maximum": math.inf}, "/maximum", "invalid"),
    (
        {"exclusiveMinimum": 0.1, "exclusiveMaximum": 0.10000000000000002, "type": "number"},
        "",
        "unsatisfiable",
    ),
    ({"unknown": 1}, "/unknown", "unsupported"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "", "unsatisfiable"),
    ({"required": ["a"], "properties": {"a": False}, "type": "object"}, "", "unsatisfiable"),
    (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "",
        "unsatisfiable",
    ),
]


@pytest.mark.parametrize(("schema", "pointer", "kind"), REFUSED, ids=lambda v: str(v)[:40])
def test_the_rest_is_refused_where_it_stands(accepts, schema, pointer, kind):
    with pytest.raises(InvalidSchema) as caught:
        accepts(part(schema), "1")
    assert caught.value.pointer == pointer
    assert caught.value.code == f"{kind}_json_schema"
    assert caught.value.param == "schema"


def wide(count):
    return {
        "type": "object",
        "properties": {f"p{i}": {"pattern": "^[a-z]+$"} for i in range(count)},
    }


def deep(levels):
    return {"items": deep(levels - 1)} if levels else {}


HOSTILE = [
    {"type": "string", "pattern": "[ab]*a[ab]{13}", "maxLength": 40},
    {"type": "string", "pattern": "(((a{1,90}){1,90}){1,90}){1,90}"},
    {"enum": [f"value {i}" * 4 for i in range(30_000)]},
    {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(9)]} for i in range(9)]},
    wide(3_000),
    deep(80),
    {"type": "array", "maxItems": 10**9},
    {"oneOf": [{"required": [f"a{i}", f"b{i}"]} for i in range(20)], "type": "object"},
]


@pytest.mark.parametrize("schema", HOSTILE, ids=lambda v: str(v)[:40])
def test_schemas_that_explode_are_refused(accepts, schema):
    """How soon is measured by the acceptance run, not here."""
    with pytest.raises(InvalidSchema) as caught:
        accepts(part(schema), "1")
    assert caught.value.code == "unsupported_json_schema"
