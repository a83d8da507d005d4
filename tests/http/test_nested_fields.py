"""Members of objects within a request that do nothing: said, or refused by a strict server."""

from __future__ import annotations

import json

import pytest

from ninfer_gateway_http.settings import ServerSettings

USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"name": "p", "schema": {"type": "boolean"}}


def after(call):
    """A conversation with ``call`` in it."""
    result = {"role": "tool", "tool_call_id": "a", "content": "1"}
    return {"messages": [USER, {"role": "assistant", "tool_calls": [call]}, result]}


CHAT = {
    "messages[0].foo": {"messages": [USER | {"foo": 1}]},
    "messages[0].content[0].foo": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "foo": 1}]}]
    },
    "messages[1].tool_calls[0].foo": after(CALL | {"foo": 1}),
    "messages[1].tool_calls[0].function.foo": after(
        CALL | {"function": CALL["function"] | {"foo": 1}}
    ),
    "tools[0].foo": {"tools": [{"type": "function", "function": FUNCTION, "foo": 1}]},
    "tools[0].function.foo": {"tools": [{"type": "function", "function": FUNCTION | {"foo": 1}}]},
    "tool_choice.foo": {
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "f"}, "foo": 1},
    },
    "response_format.foo": {"response_format": {"type": "text", "foo": 1}},
    "response_format.json_schema.foo": {
        "response_format": {"type": "json_schema", "json_schema": SCHEMA | {"foo": 1}}
    },
}
IDLE = {
    "thinking_budget": {"thinking_budget": 5, "enable_thinking": False},
    "reasoning.max_tokens": {"reasoning": {"max_tokens": 5, "effort": "none"}},
    "structured_outputs": {"structured_outputs": {}},
}


@pytest.fixture
def strict(serve):
    return serve(settings=ServerSettings(drain=0.0, strict=True))


@pytest.fixture(autouse=True)
def _with_forms(monkeypatch):
    monkeypatch.setattr("ninfer_core.testing.scripted_engine._refuse_constraints", lambda _: None)


def post(server, path, fields):
    return server.request(path, json.dumps(fields).encode())


def chat(server, **fields):
    return post(server, "/v1/chat/completions", {"messages": [USER], **fields})


@pytest.mark.parametrize("param", [*CHAT, *IDLE])
def test_what_does_nothing_in_a_chat_is_said_or_refused(server, strict, param):
    fields = (CHAT | IDLE)[param]
    said = chat(server, **fields)
    assert said.status == 200
    assert param in said.headers["x-ninfer-warning"]
    refused = chat(strict, **fields)
    assert (refused.status, refused.error["param"]) == (400, param)
    assert "was ignored" not in refused.error["message"]


def test_one_member_of_many_objects_is_said_once(server):
    reply = chat(server, messages=[USER | {"foo": 1}] * 3)
    assert reply.headers["x-ninfer-warning"].count("foo") == 1


def test_a_header_of_warnings_that_is_cut_does_not_end_in_a_blank(server):
    """No header may, and the connection would end without an answer."""
    for width in range(4):
        name = "x" * (1000 - len("unknown field '") - len("' was") - width)
        said = chat(server, **{name: 1}).headers["x-ninfer-warning"]
        assert said == f"unknown field '{name}' was ignored"[:1000].rstrip()


def test_a_conversation_is_tokenized_with_the_same_warnings(server, strict):
    body = {"messages": [USER | {"foo": 1}]}
    assert "messages[0].foo" in post(server, "/tokenize", body).headers["x-ninfer-warning"]
    assert post(strict, "/tokenize", body).error["param"] == "messages[0].foo"


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json_object", "schema": {"type": "boolean"}}, "schema"),
        ({"type": "json_schema", "schema": {"type": "boolean"}}, "schema"),
        ({"type": "text", "json_schema": SCHEMA}, "json_schema"),
        ({"type": "json_object", "json_schema": SCHEMA}, "json_schema"),
    ],
)
def test_a_schema_where_none_acts_is_refused(server, form, param):
    reply = chat(server, response_format=form)
    assert (reply.status, reply.error["param"]) == (400, f"response_format.{param}")
    assert '{"type": "json_schema", "json_schema"' in reply.error["message"]


def test_what_a_client_brings_back_is_known(server, strict):
    answer = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "parsed": None,
        "reasoning_content": "hm",
        "reasoning": "hm",
        "tool_calls": [
            {**CALL, "index": 0, "function": {**CALL["function"], "parsed_arguments": {}}}
        ],
    }
    result = {"role": "tool", "tool_call_id": "a", "content": "1"}
    for one in (server, strict):
        reply = chat(one, messages=[USER, answer, result, USER])
        assert reply.status == 200
        assert "x-ninfer-warning" not in reply.headers


ITEM = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
TOOL = {"type": "function", **FUNCTION}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [ITEM | {"foo": 1}]}, "input[0].foo"),
        (
            {"input": [{"role": "user", "content": [{**ITEM["content"][0], "foo": 1}]}]},
            "input[0].content[0].foo",
        ),
        ({"tools": [TOOL | {"foo": 1}]}, "tools[0].foo"),
        ({"tools": [TOOL], "tool_choice": {**TOOL, "foo": 1}}, "tool_choice.parameters"),
        ({"text": {"format": {"type": "text", "foo": 1}}}, "text.format.foo"),
        ({"text": {"format": {"type": "json_schema", **SCHEMA, "foo": 1}}}, "text.format.foo"),
    ],
)
def test_unknown_members_of_a_response_are_refused(server, fields, param):
    reply = post(server, "/v1/responses", {"input": "hi", **fields})
    assert (reply.status, reply.error["code"]) == (400, "unknown_parameter")
    assert reply.error["param"] == param


def test_a_schema_beside_another_form_of_a_response_is_refused(server):
    form = {"type": "json_object", "schema": {"type": "boolean"}}
    reply = post(server, "/v1/responses", {"input": "hi", "text": {"format": form}})
    assert (reply.status, reply.error["param"]) == (400, "text.format.schema")
    assert '{"type": "json_schema"' in reply.error["message"]


def test_members_of_a_response_tool_that_are_not_served_are_refused(server):
    for member, neutral in (("defer_loading", False), ("output_schema", None)):
        ask = {"input": "hi", "tools": [TOOL | {member: True}]}
        assert post(server, "/v1/responses", ask).error["param"] == f"tools[0].{member}"
        ask = {"input": "hi", "tools": [TOOL | {member: neutral}]}
        assert post(server, "/v1/responses", ask).status == 200


def test_a_budget_of_no_thought_is_said(server):
    ask = {"input": "hi", "thinking_budget": 4, "reasoning": {"effort": "none"}}
    reply = post(server, "/v1/responses", ask)
    assert "thinking_budget has no effect" in reply.headers["x-ninfer-warning"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {}, "foo": 1}}},
            "output_config.format.foo",
        ),
        (
            {
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
                "output_format": {"type": "json_schema", "schema": {"type": "null"}},
            },
            "output_format",
        ),
        ({"thinking": {"type": "adaptive", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "disabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "disabled", "display": "omitted"}}, "thinking.display"),
        ({"tool_choice": {"type": "auto", "name": "x"}}, "tool_choice.name"),
    ],
)
def test_what_does_nothing_in_a_message_is_said_or_refused(server, strict, fields, param):
    body = {"max_tokens": 8, "messages": [USER], **fields}
    said = post(server, "/v1/messages", body)
    assert said.status == 200
    assert param.split(".")[-1] in said.headers["x-ninfer-warning"]
    refused = post(strict, "/v1/messages", body)
    assert (refused.status, refused.error["details"]["param"]) == (400, param)
    assert "was ignored" not in refused.error["message"]
