"""Wrong requests: status, code and the field's name; the engine sees none of them."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging

import openai
import pytest

from ninfer_core.contract.errors import InvalidPrompt, InvalidRequest, Unsupported
from ninfer_core.testing.scripted_engine import failing
from ninfer_gateway_http.extras import refuse_clamped
from ninfer_gateway_http.settings import ServerSettings

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CHOSEN = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"store": True}, "store"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"guided_json": {}}, "guided_json"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"verbosity": "low"}, "verbosity"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": CHOSEN}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ({"structured_outputs": {"colour": "red"}}, "structured_outputs.colour"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"enable_thinking": True, "reasoning": {"enabled": False}}, "enable_thinking"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning_effort"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort"),
        ({"reasoning": {"colour": "red"}}, "reasoning.colour"),
        ({"thinking_budget": 1, "thinking_token_budget": 2}, "thinking_budget"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e9}, "temperature"),
        ({"temperature": 1e-45}, "temperature"),
        ({"top_k": 1 << 31}, "top_k"),
        ({"top_p": 1.5}, "top_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop_token_ids": [256]}, "stop_token_ids"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"9999999": 5}}, "logit_bias"),
        ({"logit_bias": {"-1": 5}}, "logit_bias"),
        ({"logit_bias": {"abc": 5}}, "logit_bias"),
        ({"logit_bias": {"65": 1e9}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(5000)}}, "logit_bias"),
        ({"chat_template_kwargs": "yes"}, "chat_template_kwargs"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": "hi"}, "messages"),
        ({"messages": [1]}, "messages[0]"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_wrong_field_is_named(server, fields, param):
    reply = server.chat(**fields)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert reply.error["type"] == "invalid_request_error"
    assert param.split(".")[-1].split("[")[0] in reply.error["message"]
    assert server.engine.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "store": False, "response_format": {"type": "text"}, "service_tier": "auto"},
        {"continue_final_message": True, "add_generation_prompt": False},
        {"functions": None, "audio": None, "logit_bias": {}, "top_logprobs": None},
        {"user": "u-1", "metadata": {"a": "b"}, "prompt_cache_key": "k"},
    ],
)
def test_neutral_values_and_labels_pass_in_silence(server, fields):
    reply = server.chat(**fields)
    assert reply.status == 200
    assert "x-ninfer-warning" not in reply.headers


def test_unknown_fields_are_said_in_a_header(server):
    for stream in (False, True):
        reply = server.chat(stream=stream, colour="red", **{"grüße\n": 1})
        assert reply.status == 200
        warning = reply.headers["x-ninfer-warning"]
        assert "unknown field 'colour' was ignored" in warning
        assert "gr\\xfc\\xdfe" in warning


def test_a_wrong_schema_is_named_with_the_place(server):
    schema = {"type": "object", "properties": {"a": {"type": 7}}}
    function = {"name": "f", "parameters": schema}
    reply = server.chat(tools=[{"type": "function", "function": function}])
    assert (reply.status, reply.error["code"]) == (400, "invalid_json_schema")
    assert reply.error["param"] == "tools[0].function.parameters"
    assert reply.error["pointer"] == "/properties/a/type"


def test_the_engines_own_refusals_use_the_names_of_the_wire(server):
    error = Unsupported("chat.effort has no effect", param="chat.effort")
    server.engine.script = failing(error)
    reply = server.chat()
    assert (reply.status, reply.error["param"]) == (400, "reasoning_effort")
    assert reply.error["message"] == "reasoning_effort has no effect"
    server.engine.script = failing(InvalidPrompt("chat.continue_final needs an assistant message"))
    assert server.chat().error["message"].startswith("continue_final_message needs")


def test_a_prompt_over_the_context_gives_both_numbers(serve):
    reply = serve(max_context=64).chat("x" * 94, max_tokens=1)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert (reply.error["prompt_tokens"], reply.error["max_context"]) == (100, 64)
    assert "100" in reply.error["message"]
    assert "64" in reply.error["message"]


def test_another_model_is_not_found(server):
    client = server.client()
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "a"}])
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b'{"messages": [}',
        b"\xff\xfe",
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=["empty", "cut", "list", "text", "typo", "bytes", "deep"],
)
def test_a_body_that_is_no_request_is_a_400(server, body):
    reply = server.request("/v1/chat/completions", body)
    assert reply.status == 400
    assert reply.error["message"]


def test_an_unreadable_body_is_told_what_to_send(server):
    reply = server.request("/v1/chat/completions", b'{"messages": "\xff"}')
    assert "UTF-8" in reply.error["message"]
    form = {"content-type": "application/x-www-form-urlencoded"}
    reply = server.request("/v1/chat/completions", b'{"messages": []}', form)
    assert reply.status == 400
    assert "content-type: application/json" in reply.error["message"]


def test_a_body_over_the_limit_is_refused(serve):
    server = serve(settings=ServerSettings(drain=0.0, max_body_bytes=1000))
    assert server.chat("x" * 100).status == 200
    reply = server.chat("x" * 2000)
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")


def test_unknown_paths_and_methods_have_the_same_shape(server):
    missing = server.request("/v1/nothing").error
    assert (missing["code"], missing["message"]) == ("not_found", "Not Found: GET /v1/nothing")
    reply = server.request("/v1/chat/completions")
    assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
    assert reply.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("path", "status"),
    [("/health", 200), ("/ready", 200), ("/v1/models", 200), ("/", 200), ("/v1/messages", 405)],
)
def test_head_is_get_without_its_body(server, path, status):
    """What only looks whether a server is there often asks so."""
    got = server.request(path)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as wire:
        wire.request("HEAD", path)
        answer = wire.getresponse()
        assert (answer.status, answer.read()) == (status, b"")
        wire.request("GET", path)  # its answer begins where the head ended
        assert wire.getresponse().status == status
    assert got.status == status
    for name in ("content-type", "allow") if status == 405 else ("content-type", "content-length"):
        assert answer.headers[name] == got.headers.get(name)


def test_a_head_is_named_as_it_was_asked(serve, caplog, eventually):
    caplog.set_level(logging.INFO, "ninfer.http")
    server = serve()
    asked = [("/health", 200), ("/v1/messages", 405), ("/nothing", 404)]
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as wire:
        for path, status in asked:
            wire.request("HEAD", path)
            answer = wire.getresponse()
            assert (answer.status, answer.read()) == (status, b"")
            if status != 200:  # the text, which is not sent, says HEAD in place of GET
                said = server.request(path).text
                assert int(answer.headers["content-length"]) == len(said) + 1
    lines = lambda: [r.getMessage() for r in caplog.records if "HEAD" in r.getMessage()]  # noqa: E731
    eventually(lambda: len(lines()) == len(asked))
    assert [line.split()[:3] for line in lines()] == [
        ["HEAD", repr(path), str(status)] for path, status in asked
    ]
    counted = server.server._gateway.metrics.replies
    assert counted["HEAD", "/health", 200] == 1


def test_the_request_id_is_kept_or_made(server):
    given = server.request("/v1/models", headers={"x-request-id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    assert server.request("/v1/models").headers["x-request-id"].startswith("req_")


def test_the_document_lists_the_routes(server):
    paths = json.loads(server.request("/openapi.json").text)["paths"]
    assert {"/v1/chat/completions", "/v1/models", "/health"} <= set(paths)


def test_a_strict_server_refuses_limits_that_were_clamped_and_no_other_note():
    refuse_clamped(["the model's preset presence_penalty 1.5 is not applied to an answer"])
    for name in ("min_tokens", "max_output_tokens"):
        with pytest.raises(InvalidRequest, match="would be clamped") as caught:
            refuse_clamped(["the preset is not applied", f"{name} 9 was clamped to 4"])
        assert caught.value.param == name
