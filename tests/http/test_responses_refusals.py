"""Wrong requests to the Responses routes: status, code and the field's name as it was sent."""

from __future__ import annotations

import json

import openai
import pytest

from ninfer_gateway_http.settings import ServerSettings

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
USER = {"role": "user", "content": "hi"}


def raw(server, path="/v1/responses", **fields):
    return server.request(path, json.dumps({"input": "hi"} | fields).encode())


def part(kind, **fields):
    return {"input": [{"role": "user", "content": [{"type": kind, **fields}]}]}


def items(*given):
    return {"input": [USER, *given]}


def call(**fields):
    base = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    return items(base | fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [7]}, "input[0]"),
        (items({"role": "wizard", "content": "a"}), "input[1].role"),
        (items({"type": "wish"}), "input[1].type"),
        (items({"type": [1]}), "input[1].type"),
        (items({"text": "hi"}), "input[1].type"),
        (items({"type": "web_search_call"}), "input[1].type"),
        (items({"type": "custom_tool_call_output"}), "input[1].type"),
        (items({"role": "user"}), "input[1].content"),
        (items({"role": "user", "content": "a", "status": "odd"}), "input[1].status"),
        (items({"role": "user", "content": "a", "id": 5}), "input[1].id"),
        (part("input_image", image_url="https://x"), "input[0].content[0].type"),
        (part("input_file", file_id="f"), "input[0].content[0].type"),
        (part("video"), "input[0].content[0].type"),
        (part("input_text"), "input[0].content[0].text"),
        (call(arguments="{"), "input[1].arguments"),
        (call(arguments="[]"), "input[1].arguments"),
        (call(call_id=""), "input[1].call_id"),
        (call(name=None), "input[1].name"),
        (
            items({"type": "function_call_output", "call_id": "c", "output": "x"}),
            "input[1].call_id",
        ),
        (items({"type": "function_call_output", "call_id": "c"}), "input[1].output"),
        (items({"type": "reasoning", "content": [{"type": "a"}]}), "input[1].content[0].type"),
        (items({"type": "item_reference", "id": "msg_x"}), "input[1].id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"truncation": "auto"}, "truncation"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}},
            "text.format",
        ),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "f"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function"),
        ({"tools": [TOOL | {"parameters": {"type": "odd"}}]}, "tools[0].parameters"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []},
            },
            "tool_choice.type",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"include": ["everything"]}, "include[0]"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
        ({"reasoning": "high"}, "reasoning"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"max_output_tokens": "many"}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"metadata": {str(i): "v" for i in range(17)}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {"k": 5}}, "metadata.k"),
        ({"prompt_cache_key": "k" * 65}, "prompt_cache_key"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ({"background": True, "stream": True}, "background"),
        ({"background": True, "store": False}, "store"),
        ({"previous_response_id": 5}, "previous_response_id"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_wrong_field_is_named(server, fields, param):
    reply = raw(server, **fields)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert reply.error["type"] == "invalid_request_error"
    assert param.split(".")[-1].split("[")[0] in reply.error["message"]
    assert server.engine.requests == []


@pytest.mark.parametrize(
    ("fields", "param", "hint"),
    [
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"messages": [USER]}, "messages", "input"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "reasoning.effort"),
        ({"response_format": {"type": "text"}}, "response_format", "text.format"),
        ({"n": 1}, "n", "leave it out"),
        ({"reasoning": {"depth": 3}}, "reasoning.depth", "leave it out"),
        ({"text": {"font": "serif"}}, "text.font", "leave it out"),
        ({"stream_options": {"include_usage": True}}, "stream_options.include_usage", "leave"),
    ],
)
def test_an_unknown_parameter_is_refused(server, fields, param, hint):
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().responses.create(model="scripted", input="hi", extra_body=fields)
    assert (refused.value.code, refused.value.param) == ("unknown_parameter", param)
    assert f"unknown parameter: {param!r}" in refused.value.message
    assert hint in refused.value.message
    assert server.engine.requests == []


def test_counting_takes_the_fields_of_the_prompt_alone(server):
    reply = raw(server, "/v1/responses/input_tokens", max_output_tokens=5)
    assert (reply.status, reply.error["code"]) == (400, "unknown_parameter")
    reply = raw(server, "/v1/responses/input_tokens", truncation="auto")
    assert (reply.status, reply.error["param"]) == (400, "truncation")


@pytest.mark.parametrize(
    "fields",
    [
        {"truncation": "disabled", "service_tier": "default", "conversation": None},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}, "tools": []},
        {"include": ["reasoning.encrypted_content"], "top_logprobs": 0},
        {"user": "u", "safety_identifier": "s", "prompt_cache_retention": "24h"},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
        {"reasoning": {"effort": None, "summary": None, "context": "auto"}},
    ],
)
def test_neutral_values_and_labels_pass_in_silence(server, fields):
    reply = raw(server, **fields)
    assert reply.status == 200
    assert "x-ninfer-warning" not in reply.headers


def test_another_model_is_not_found(server):
    with pytest.raises(openai.NotFoundError) as missing:
        server.client().responses.create(model="gpt", input="hi")
    assert missing.value.code == "model_not_found"


def test_a_prompt_beyond_the_context_is_told_with_both_numbers(serve):
    server = serve(max_context=64)
    reply = raw(server, input="x" * 100)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    # "user: " and a hundred letters
    assert (reply.error["prompt_tokens"], reply.error["max_context"]) == (106, 64)
    assert reply.error["param"] == "input"


def test_compacting_is_refused(server):
    with pytest.raises(openai.BadRequestError, match="compacting is not supported"):
        server.client().responses.compact(model="scripted", input="hi")


def test_a_stored_stream_is_refused(server):
    done = server.client().responses.create(model="scripted", input="hi")
    reply = server.request(f"/v1/responses/{done.id}?stream=true")
    assert (reply.status, reply.error["param"]) == (400, "stream")


def test_half_a_character_and_no_number_are_refused(server):
    bodies = (
        b'{"input": "a\\ud800"}',
        b'{"input": [{"role": "user", "content": "\\udfff"}]}',
        b'{"input": "a", "instructions": "\\ud800"}',
        b'{"input": "a", "tools": [{"type": "function", "name": "f", "x": NaN}]}',
        b'{"input": "a", "\\ud800": 1}',
    )
    for body in bodies:
        reply = server.request("/v1/responses", body)
        assert reply.status == 400, body
        assert reply.error["code"]
    assert server.engine.requests == []


def test_a_strict_server_refuses_what_has_no_effect(serve):
    server = serve(settings=ServerSettings(drain=0.0, strict=True), max_context=64)
    reply = raw(server, reasoning={"summary": "auto"})
    assert reply.status == 400
    assert "reasoning.summary" in reply.error["message"]
    reply = raw(server, max_output_tokens=1000)
    assert (reply.status, reply.error["param"]) == (400, "max_output_tokens")
    assert "clamped from 1000 to 56" in reply.error["message"]
    assert raw(server, max_output_tokens=56).status == 200
