from __future__ import annotations

import pytest

from ninfer_core.contract.errors import InvalidPrompt, Unsupported
from ninfer_core.inputs import parse_messages

USER = {"role": "user", "content": "hi"}


def test_messages_get_one_form():
    given = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, "b"]},
        {"role": "user", "content": "hi", "name": "Ada", "refusal": None},
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": None},
        {"role": "tool", "tool_call_id": "1"},
    ]
    assert parse_messages(given) == [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        {"role": "user", "content": "hi", "name": "Ada"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "1", "content": ""},
    ]


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}, None, "not json"])
def test_tool_calls_are_kept(arguments):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (message,) = parse_messages([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert message["tool_calls"] == [call]


def test_both_spellings_of_reasoning_may_agree():
    (message,) = parse_messages([{"role": "assistant", "reasoning": "a", "reasoning_content": "a"}])
    assert message["reasoning_content"] == "a"
    assert "reasoning" not in message


def test_the_given_messages_are_left_alone():
    given = [{"role": "assistant", "content": None, "reasoning": "hm"}]
    parse_messages(given)
    assert given == [{"role": "assistant", "content": None, "reasoning": "hm"}]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ("hi", "messages"),
        ({}, "messages"),
        ([], "messages"),
        ([USER, "hi"], "messages[1]"),
        ([USER, {}], "messages[1].role"),
        ([USER, {"role": "wizard"}], "messages[1].role"),
        ([USER, {"role": ["user"]}], "messages[1].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "system", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [3]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "smell"}]}], "messages[0].content[0].type"),
        ([{"role": "assistant", "reasoning": 3}], "messages[0].reasoning"),
        (
            [{"role": "assistant", "reasoning": "a", "reasoning_content": "b"}],
            "messages[0].reasoning",
        ),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [3]}], "messages[0].tool_calls[0]"),
        (
            [{"role": "assistant", "tool_calls": [{"type": "custom"}]}],
            "messages[0].tool_calls[0].type",
        ),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_fault_names_its_place(messages, param):
    with pytest.raises(InvalidPrompt) as caught:
        parse_messages(messages)
    assert caught.value.param == param
    assert str(caught.value).startswith(param)


@pytest.mark.parametrize("kind", ["image_url", "input_image", "video_url", "input_audio", "file"])
def test_media_parts_are_refused_by_name(kind):
    parts = [{"type": "text", "text": "a"}, {"type": kind, kind: {}}]
    with pytest.raises(Unsupported) as caught:
        parse_messages([{"role": "user", "content": parts}])
    assert caught.value.param == "messages[0].content[1].type"


@pytest.mark.parametrize("key", ["function_call", "audio"])
def test_legacy_fields_are_refused_by_name(key):
    with pytest.raises(Unsupported) as caught:
        parse_messages([{"role": "assistant", "content": "a", key: {"id": "x"}}])
    assert caught.value.param == f"messages[0].{key}"


@pytest.mark.parametrize("kind", [{}, [], None, 5])
def test_a_kind_of_part_that_is_no_text_is_named(kind):
    with pytest.raises(InvalidPrompt) as caught:
        parse_messages([{"role": "tool", "content": [{"type": kind, "text": ""}]}])
    assert caught.value.param == "messages[0].content[0].type"
