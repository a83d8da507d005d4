from __future__ import annotations

import json

import pytest

from ninfer_core.contract.errors import InvalidPrompt, InvalidRequest, InvalidSchema
from ninfer_core.contract.requests import (
    CacheMarker,
    CacheRequest,
    ChatOptions,
    PromptInput,
    ResponseFormat,
    ToolChoice,
)
from ninfer_core.engine.instruction import with_schema_instruction
from ninfer_core.inputs import parse_prompt, parse_response_format

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "search"}}
SCHEMA = {"type": "object", "properties": {"größe": {"type": "integer"}}}


def test_a_list_is_messages():
    assert parse_prompt([USER]) == PromptInput(messages=[USER])


def test_a_document_may_hold_everything_about_the_prompt():
    prompt = parse_prompt(
        {
            "messages": [USER],
            "tools": [TOOL],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "response_format": {"type": "json_object"},
        },
        chat=ChatOptions(thinking=True),
        cache=CacheRequest(salt="s"),
    )
    assert prompt == PromptInput(
        messages=[USER],
        tools=(TOOL,),
        tool_choice=ToolChoice(mode="required", parallel=False),
        response_format=ResponseFormat(kind="json_object"),
        chat=ChatOptions(thinking=True),
        cache=CacheRequest(salt="s"),
    )


@pytest.mark.parametrize(
    ("document", "param"),
    [
        ("hi", "prompt"),
        ({"messages": [USER], "temperature": 1}, "prompt.temperature"),
        ({"messages": [USER], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ],
)
def test_a_malformed_document_names_its_place(document, param):
    with pytest.raises(InvalidRequest) as caught:
        parse_prompt(document)
    assert caught.value.param == param


def test_a_document_without_messages_is_an_error():
    with pytest.raises(InvalidPrompt, match="messages is null"):
        parse_prompt({})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ResponseFormat()),
        ({"type": "text"}, ResponseFormat()),
        ({"type": "json_object"}, ResponseFormat(kind="json_object")),
        (
            {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}},
            ResponseFormat(kind="json_schema", value=SCHEMA, name="p"),
        ),
        (
            {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": False}},
            ResponseFormat(kind="json_schema", value=SCHEMA, strict=False),
        ),
    ],
)
def test_response_formats(value, expected):
    assert parse_response_format(value) == expected


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("json_object", "response_format"),
        ({}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {}}, "response_format.json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"schema": {}, "name": 3}},
            "response_format.json_schema.name",
        ),
    ],
)
def test_a_malformed_format_names_its_place(value, param):
    with pytest.raises(InvalidRequest) as caught:
        parse_response_format(value)
    assert caught.value.param == param


def test_a_malformed_schema_has_a_pointer():
    schema = {"properties": {"a": {"type": "text"}}}
    with pytest.raises(InvalidSchema) as caught:
        parse_response_format({"type": "json_schema", "json_schema": {"schema": schema}})
    assert caught.value.pointer == "/properties/a/type"
    assert caught.value.param == "response_format.json_schema.schema"


def test_the_schema_becomes_the_first_system_message_and_markers_move_along():
    messages = [{"role": "system", "content": "Be kind."}, USER]
    markers = (CacheMarker(message=0), CacheMarker(message=1, part=2))
    prompt = PromptInput(
        messages=messages,
        response_format=ResponseFormat(kind="json_schema", value=SCHEMA, name="p"),
        cache=CacheRequest(session_key="k", markers=markers),
    )
    changed = with_schema_instruction(prompt)
    added, *rest = changed.messages
    assert rest == messages
    assert added["role"] == "system"
    assert json.loads(added["content"].partition("\n")[2]) == SCHEMA
    assert "größe" in added["content"]
    assert changed.cache.markers == (CacheMarker(message=1), CacheMarker(message=2, part=2))
    assert changed.cache.session_key == "k"
    assert prompt.messages == messages


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("json_object", None, "JSON object"),
        ("choice", ["a", "b"], '"a", "b"'),
        ("regex", "a+", "\na+"),
        ("grammar", "root ::= a", "\nroot ::= a"),
    ],
)
def test_every_format_has_an_instruction(kind, value, shown):
    wanted = ResponseFormat(kind=kind, value=value)
    changed = with_schema_instruction(PromptInput(messages=[USER], response_format=wanted))
    assert shown in changed.messages[0]["content"]


def test_without_a_format_or_messages_nothing_changes():
    plain = PromptInput(messages=[USER])
    assert with_schema_instruction(plain) is plain
    text = PromptInput(text="a", response_format=ResponseFormat(kind="json_object"))
    assert with_schema_instruction(text) is text


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"not": value}
    return value


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("json_schema", nested(100_000), "nested too deeply"),
        ("json_schema", {"const": {1, 2}}, "set"),
        ("choice", 5, "not iterable"),
    ],
)
def test_a_format_that_cannot_be_written_down_is_refused(kind, value, why):
    wanted = ResponseFormat(kind=kind, value=value)
    with pytest.raises(InvalidSchema, match=why) as caught:
        with_schema_instruction(PromptInput(messages=[USER], response_format=wanted))
    assert caught.value.param == "response_format"
