from __future__ import annotations

import pytest

from ninfer_core.contract.errors import InvalidRequest, InvalidSchema, Unsupported
from ninfer_core.contract.requests import ToolChoice
from ninfer_core.inputs import parse_tool_choice, parse_tools
from ninfer_core.inputs.fields import Field


def tool(name="search", **function):
    return {"type": "function", "function": {"name": name, **function}}


SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "pattern": "^a"},
        "any": {"anyOf": [{"type": ["integer", "null"]}, {"$ref": "#/$defs/x"}, True]},
        "list": {"type": "array", "items": {"enum": [1, "a"]}, "minItems": 0},
    },
    "required": ["query"],
    "additionalProperties": False,
    "$defs": {"x": {"const": 3}},
}


def test_tools_are_passed_on_as_given():
    given = [tool(description="d", parameters=SCHEMA, strict=True), tool("other", parameters=None)]
    assert parse_tools(given) == tuple(given)
    assert parse_tools(None) == ()
    assert parse_tools([]) == ()


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ({}, "tools"),
        (["search"], "tools[0]"),
        ([tool(), {"type": "function"}], "tools[1].function"),
        ([tool("")], "tools[0].function.name"),
        ([tool(3)], "tools[0].function.name"),
        ([tool("a b")], "tools[0].function.name"),
        ([tool("a" * 65)], "tools[0].function.name"),
        ([tool(description=3)], "tools[0].function.description"),
        ([tool(strict="yes")], "tools[0].function.strict"),
        ([tool("a"), tool("b"), tool("a")], "tools[2].function.name"),
    ],
)
def test_a_fault_names_its_place(tools, param):
    with pytest.raises(InvalidRequest) as caught:
        parse_tools(tools)
    assert caught.value.param == param
    assert str(caught.value).startswith(param)


def test_no_name_is_compared_with_all_the_others(monkeypatch):
    class Counting(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other):
            Counting.compared += 1
            return str.__eq__(self, other)

    monkeypatch.setattr(Field, "need", lambda self, kind, wanted=None: self.value)
    parse_tools([tool(Counting(f"tool_{number}")) for number in range(300)])
    assert Counting.compared < 300


def test_other_kinds_of_tools_are_refused_by_name():
    with pytest.raises(Unsupported) as caught:
        parse_tools([{"type": "web_search"}])
    assert caught.value.param == "tools[0].type"


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("parameters", "pointer"),
    [
        ("object", ""),
        ([], ""),
        ({"type": "objekt"}, "/type"),
        ({"type": "string"}, "/type"),
        ({"type": ["object", "null"]}, "/type"),
        ({"type": []}, "/type"),
        ({"type": {"a": 1}}, "/type"),
        ({"properties": []}, "/properties"),
        ({"properties": {"a/b~c": 3}}, "/properties/a~1b~0c"),
        ({"properties": {"a": {"type": "text"}}}, "/properties/a/type"),
        ({"properties": {"a": {"items": [{"type": "string"}]}}}, "/properties/a/items"),
        ({"properties": {"a": {"anyOf": []}}}, "/properties/a/anyOf"),
        ({"properties": {"a": {"allOf": [{}, 3]}}}, "/properties/a/allOf/1"),
        ({"properties": {"a": {"enum": "b"}}}, "/properties/a/enum"),
        ({"properties": {"a": {"pattern": 3}}}, "/properties/a/pattern"),
        ({"properties": {"a": {"minLength": -1}}}, "/properties/a/minLength"),
        ({"required": "a"}, "/required"),
        ({"required": [1]}, "/required"),
        ({"$ref": 3}, "/$ref"),
        ({"$defs": {"x": {"not": 7}}}, "/$defs/x/not"),
        ({"properties": {"a": deep(100)}}, "/properties/a" + "/items" * 64),
    ],
)
def test_a_bad_schema_is_named_with_a_pointer(parameters, pointer):
    with pytest.raises(InvalidSchema) as caught:
        parse_tools([tool(parameters=parameters)])
    assert caught.value.param == "tools[0].function.parameters"
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="required")),
        (
            {"type": "function", "function": {"name": "search"}},
            ToolChoice(mode="named", name="search"),
        ),
        ({"type": "function", "name": "search"}, ToolChoice(mode="named", name="search")),
    ],
)
def test_choices(choice, expected):
    assert parse_tool_choice(choice, [tool()]) == expected


def test_parallel_calls_can_be_forbidden():
    assert parse_tool_choice("auto", [tool()], parallel=False) == ToolChoice(parallel=False)


@pytest.mark.parametrize(
    ("choice", "tools", "param"),
    [
        ("always", [tool()], "tool_choice"),
        (3, [tool()], "tool_choice"),
        ("required", [], "tool_choice"),
        ({"type": "function", "function": {"name": "search"}}, [], "tool_choice"),
        ({"type": "function"}, [tool()], "tool_choice.name"),
        ({"type": "function", "function": {}}, [tool()], "tool_choice.function.name"),
        (
            {"type": "function", "function": {"name": "other"}},
            [tool()],
            "tool_choice.function.name",
        ),
    ],
)
def test_a_choice_that_cannot_be_is_never_downgraded(choice, tools, param):
    with pytest.raises(InvalidRequest) as caught:
        parse_tool_choice(choice, tools)
    assert caught.value.param == param


def test_other_kinds_of_choices_are_refused_by_name():
    with pytest.raises(Unsupported):
        parse_tool_choice({"type": "allowed_tools"}, [tool()])
