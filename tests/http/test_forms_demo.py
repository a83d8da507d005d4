"""Answers with a form, by OpenAI's client, from a server process with the demo model."""

from __future__ import annotations

import json
import re

import openai
import pytest

ASK = {"model": "demo", "max_tokens": 120, "temperature": 1.5, "seed": 3}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"enum": [30, 40]}},
    "required": ["name", "age"],
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PERSON}} for name in ("a", "b")
]


@pytest.fixture(scope="module")
def client(demo):
    return demo.client()


def ask(client, **fields):
    messages = [{"role": "user", "content": "Reply with a markdown poem about Ann, 30"}]
    return client.chat.completions.create(messages=messages, **ASK | fields)


def schema_of(schema):
    wanted = {"name": "p", "strict": True, "schema": schema}
    return {"type": "json_schema", "json_schema": wanted}


@pytest.mark.parametrize("thinking", [True, False])
def test_json_under_a_schema_whole_and_streamed(client, thinking):
    extra = {"chat_template_kwargs": {"enable_thinking": thinking}, "thinking_token_budget": 8}
    fields = {"response_format": schema_of(PERSON), "extra_body": extra}
    (choice,) = ask(client, **fields).choices
    assert choice.finish_reason == "stop"
    assert list(json.loads(choice.message.content)) == ["name", "age"]
    chunks = list(ask(client, stream=True, **fields))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == choice.message.content


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "[a-c]{3}-[0-9]{2}"}, "[a-c]{3}-[0-9]{2}"),
        ({"choice": ["red", "dark blue"]}, "red|dark blue"),
        ({"grammar": 'root ::= "x"{2,} | [0-9]{,3} "!"'}, "x{2,}|[0-9]{0,3}!"),
    ],
)
def test_structured_outputs(client, form, pattern):
    (choice,) = ask(client, extra_body={"structured_outputs": form}).choices
    whole = re.fullmatch(pattern, choice.message.content)
    assert whole or choice.finish_reason == "length"


def test_a_choice_of_tools_is_never_another(client):
    """A choice that is silently taken for another."""
    named = {"type": "function", "function": {"name": "b"}}
    (choice,) = ask(client, tools=TOOLS, tool_choice=named, parallel_tool_calls=False).choices
    (call,) = choice.message.tool_calls
    assert (call.function.name, choice.finish_reason) == ("b", "tool_calls")
    assert list(json.loads(call.function.arguments)) == ["name", "age"]
    (choice,) = ask(client, tools=TOOLS, tool_choice="required").choices
    assert choice.message.tool_calls or choice.finish_reason == "length"
    unknown = {"type": "function", "function": {"name": "c"}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, tools=TOOLS, tool_choice=unknown)
    assert "tool_choice" in refused.value.param


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("limit", [3, 9, 15])
def test_a_call_that_is_cut_ends_by_length(client, stream, limit):
    """Half a call that is reported as a whole one."""
    fields = {"tools": TOOLS, "tool_choice": "required", "max_tokens": limit, "stream": stream}
    got = ask(client, **fields)
    ends = [c.choices[0].finish_reason for c in (got if stream else [got]) if c.choices]
    assert ends[-1] == "length"


def test_a_schema_that_is_not_enforced_is_refused_by_its_place(client):
    wrong = {"type": "object", "properties": {"at": {"type": "string", "format": "date"}}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, response_format=schema_of(wrong))
    error = refused.value.body
    assert error["code"] == "unsupported_json_schema"
    assert error["pointer"] == "/properties/at/format"
