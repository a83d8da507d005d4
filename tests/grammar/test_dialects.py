"""Expressions that ECMA-262 and Python's ``re`` read differently: what has to match matches in
both, and what must not matches in neither. Python is judged by ``re`` and ``jsonschema``, ECMA-262
by hand after CharacterClassEscape, WhiteSpace, LineTerminator and the assertion ``$``."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from ninfer_core.contract.errors import InvalidSchema
from ninfer_grammar_xgrammar import automata, regex
from ninfer_grammar_xgrammar.dialects import Reading
from tests.grammar.test_schemas import part

SAMPLE = "a_5 é中😀²٣\u00a0\u3000\ufeff\u180e\u2028\r\n\x1c\x85-ſ\u212a"
ECMA_SPACE = set(" \u00a0\u3000\ufeff\u2028\r\n")
ECMA = {
    r"\s": ECMA_SPACE,
    r"\S": set(SAMPLE) - ECMA_SPACE,
    r"\d": {"5"},
    r"\D": set(SAMPLE) - {"5"},
    r"\w": set("a_5"),
    r"\W": set(SAMPLE) - set("a_5"),
    r".": set(SAMPLE) - set("\r\n\u2028"),
    r"[^\s]": set(SAMPLE) - ECMA_SPACE,
    r"[\s\S]": set(SAMPLE),
    r"[^\wé]": set(SAMPLE) - set("a_5é"),
    r"[\d-]": set("5-"),
    r"[^\W\d]": set("a_"),
    r"[^\S\n]": ECMA_SPACE - {"\n"},
}


@pytest.mark.parametrize("pattern", ECMA)
def test_a_set_holds_what_each_dialect_says(pattern):
    for char in SAMPLE:
        python, ecma = re.fullmatch(pattern, char) is not None, char in ECMA[pattern]
        judged = {
            Reading.PYTHON: python,
            Reading.ECMA: ecma,
            Reading.AGREED: python and ecma,
            Reading.EITHER: python or ecma,
        }
        for reading, holds in judged.items():
            assert automata.matches(regex.full(pattern, reading), char) == holds, (char, reading)


@pytest.mark.parametrize("pattern", [r"^\d$", "a$", "^(a$|b$)", "(^a|^b)$", "a$|b$"])
def test_python_lets_a_line_break_follow_the_end(pattern):
    for text in ("a", "b", "5", "a\n", "5\n", "a\n\n", "b\n", "\n", "ab"):
        found = automata.matches(regex.search(pattern, Reading.PYTHON), text)
        assert found == (re.search(pattern, text) is not None), text
        agreed = automata.matches(regex.search(pattern), text)
        assert agreed == (found and not text.endswith("\n")), text


@pytest.mark.parametrize("pattern", [r"\S+", r"[\s\S]*", r"\D*", r"[^\s]{1,3}", r"[^\d\s]+"])
def test_characters_that_both_dialects_take_are_produced(accepts, pattern):
    for text in ("é", "中é", "😀"):
        assert re.fullmatch(pattern, text)
        assert accepts({"kind": "regex", "pattern": pattern}, text), text
        quoted = json.dumps(text, ensure_ascii=False)
        assert accepts(part({"type": "string", "pattern": f"^{pattern}$"}), quoted)
        assert accepts(part({"const": text, "pattern": f"^{pattern}$"}), quoted)


NAMED = {
    "type": "object",
    "propertyNames": {"const": "é"},
    "patternProperties": {r"^\S": {"type": "boolean"}},
    "additionalProperties": {"type": "null"},
    "minProperties": 1,
}
TAKES_E = (r"\S", r"\D", r"[\s\S]", r"[^\s]", r"^[^\d]$")


@pytest.mark.parametrize("pattern", TAKES_E)
def test_what_must_not_match_matches_in_no_dialect(accepts, pattern):
    """Each answer here is invalid by ``jsonschema``; the last schema has no valid one."""
    told = {"if": {"properties": {"a": {"pattern": pattern}}}, "then": False}
    schemas = [
        (
            {"oneOf": [{"type": "string", "pattern": pattern}, {"type": "string"}]},
            '"é"',
        ),
        ({"type": "string", "not": {"pattern": pattern}}, '"é"'),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], **told}, 0),
    ]
    for schema, text in schemas:
        text = text or '{"a":"é"}'
        assert not jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
        assert not accepts(part(schema), text), schema
    with pytest.raises(InvalidSchema) as caught:
        accepts(part({"enum": ["é"], "not": {"pattern": pattern}}), '"é"')
    assert caught.value.code == "unsatisfiable_json_schema"


def test_names_are_told_apart_by_patterns_as_both_dialects_do(accepts):
    for value, valid in ((None, False), (True, True)):
        assert jsonschema.Draft202012Validator(NAMED).is_valid({"é": value}) == valid
        assert (
            accepts(part(NAMED), json.dumps({"é": value}, ensure_ascii=False)[:-1] + "}") == valid
        )
    free = {
        "type": "object",
        "patternProperties": {r"^\w$": {"type": "null"}},
        "additionalProperties": {"type": "boolean"},
    }
    assert accepts(part(free), '{"a":null,"--":true}')
    for text in ('{"é":null}', '{"é":true}', '{"a":true}'):  # é is a word character for re alone
        assert not accepts(part(free), text), text


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"enum": ["é", "a"], "pattern": r"^\w$"}, ""),
        ({"not": {"const": "é", "pattern": r"^\w$"}}, "/not"),
        ({"properties": {"x": {"const": "a\n", "pattern": "^a$"}}}, "/properties/x"),
        ({"properties": {"é": True}, "patternProperties": {r"\w": {"type": "null"}}}, ""),
    ],
)
def test_constants_and_names_that_the_dialects_read_differently_are_refused(
    accepts, schema, pointer
):
    with pytest.raises(InvalidSchema, match="ECMA-262 and Python's re differ") as caught:
        accepts(part(schema), "1")
    assert (caught.value.pointer, caught.value.code) == (pointer, "unsupported_json_schema")


FREE = {"type": "object", "patternProperties": {"^[ab]$": {"type": "null"}}}


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({**FREE, "additionalProperties": False, "minProperties": 2}, "/minProperties"),
        ({"items": {"type": "object", "minProperties": 3}}, "/items/minProperties"),
        ({"type": "object", "required": ["a"], "minProperties": 3}, "/minProperties"),
        ({"allOf": [{"minProperties": 1}, FREE, {"minProperties": 2}]}, "/allOf/2/minProperties"),
        ({"type": "object", "not": {"maxProperties": 1}}, "/not"),
    ],
)
def test_members_that_only_a_repeated_name_may_make_up_are_refused(accepts, schema, pointer):
    with pytest.raises(InvalidSchema, match="differ in name") as caught:
        accepts(part(schema), "{}")
    assert (caught.value.pointer, caught.value.code) == (pointer, "unsupported_json_schema")


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({**FREE, "minProperties": 1}, ['{"a":null}', '{"c":1}'], ["{}"]),
        (
            {"type": "object", "required": ["x"], "minProperties": 2},
            ['{"x":1,"y":2}'],
            ['{"x":1}', '{"x":1,"x":1}', '{"y":1,"y":1}'],
        ),
        (
            {"propertyNames": {"enum": ["a", "b"]}, "type": "object", "minProperties": 2},
            ['{"a":1,"b":2}'],
            ['{"a":1,"a":2}', '{"a":1}'],
        ),
        (
            {"propertyNames": {"enum": ["a", "b"], "pattern": "^a"}, "minProperties": 1},
            ['{"a":1}', "1"],
            ['{"b":1}', "{}"],
        ),
    ],
)
def test_members_are_counted_by_names_that_differ(accepts, schema, valid, invalid):
    judge = jsonschema.Draft202012Validator(schema)
    for text in valid:
        assert judge.is_valid(json.loads(text))
        assert accepts(part(schema), text), text
    for text in invalid:
        assert not judge.is_valid(json.loads(text))
        assert not accepts(part(schema), text), text


def test_a_repetition_is_counted_in_ascii_digits():
    with pytest.raises(regex.RegexError, match="begins no repetition"):
        regex.full("a{²}")


def test_scattered_sets_are_repeated_within_a_limit(accepts):
    """What the largest costs is measured by the acceptance run, not here."""
    assert accepts({"kind": "regex", "pattern": r"(\W\w){0,9}"}, "-a😀b")
    with pytest.raises(InvalidSchema, match="ranges of characters"):
        accepts({"kind": "regex", "pattern": r"(\W\w){0,100}"}, "-a")
