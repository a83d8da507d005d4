"""A fault is named by the field that has it, in words that say what to send."""

from __future__ import annotations

import gzip
import json

import pytest

from ninfer_core.contract.errors import InvalidRequest, InvalidSchema
from ninfer_gateway_http.settings import ServerSettings

USER = {"role": "user", "content": "hi"}
HALF = "\ud800"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def post(server, path, **fields):
    body = {"max_tokens": 8, "messages": [USER]} if path != RESPONSES else {"input": "hi"}
    return server.request(path, json.dumps(body | fields).encode())


def param_of(reply):
    return reply.error.get("param") or reply.error.get("details", {}).get("param")


def tool(name, value):
    parameters = {"type": "object", "properties": {"a": {"enum": [value]}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"choice": ["a", HALF]}}, "structured_outputs.choice[1]"),
        ({"structured_outputs": {"grammar": f'root ::= "{HALF}"'}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"regex": HALF}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": {"enum": [HALF]}}}, "structured_outputs.json"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"enum": [HALF]}},
                }
            },
            "response_format",
        ),
        ({"tools": [tool("f", "a"), tool("g", HALF)]}, "tools[1]"),
        ({"stop": HALF}, "stop"),
        ({"stop": ["a", HALF]}, "stop[1]"),
    ],
)
def test_half_a_character_is_refused_where_it_stands(server, fields, param):
    reply = post(server, CHAT, **fields)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")
    assert reply.error["param"] == param
    assert "half of a surrogate pair" in reply.error["message"]
    assert "codec" not in reply.error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop_sequences": ["a", HALF]}, "stop_sequences[1]"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"enum": [HALF]}}}},
            "output_config.format",
        ),
        ({"tools": [{"name": "f", "input_schema": {"enum": [HALF]}}]}, "tools[0]"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [USER, {"role": "user", "content": []}]}, "messages[1].content"),
    ],
)
def test_what_a_message_cannot_hold_is_named(server, fields, param):
    reply = post(server, MESSAGES, **fields)
    assert (reply.status, param_of(reply)) == (400, param)
    assert reply.error["message"].startswith(param)


def refusing(prompt, options):
    raise InvalidRequest("stop cannot be combined with response_format: it ends", param="stop")


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        (CHAT, {"structured_outputs": {"regex": "a"}}, ("stop", "structured_outputs")),
        (CHAT, {"response_format": {"type": "json_object"}}, ("stop", "response_format")),
        (MESSAGES, {}, ("stop_sequences", "output_config.format")),
        (RESPONSES, {}, ("stop", "text.format")),
    ],
)
def test_two_fields_that_exclude_each_other_are_both_named(server, monkeypatch, path, fields, said):
    monkeypatch.setattr("ninfer_core.testing.scripted_engine._refuse_constraints", lambda _: None)
    server.engine.script = refusing
    reply = post(server, path, **fields)
    assert (reply.status, param_of(reply)) == (400, said[0])
    assert reply.error["message"] == f"{said[0]} cannot be combined with {said[1]}: it ends"


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("rest", ["", "x" * 20_000], ids=["short", "long"])
def test_a_number_that_nothing_reads_is_said_with_its_field(server, path, rest):
    body = f'{{"user": "{rest}", "seed": {"1" * 5000}, "messages": []}}'
    reply = server.request(path, body.encode())
    assert (reply.status, param_of(reply)) == (400, "seed")
    assert "more than 4300 digits" in reply.error["message"]
    nameless = server.request(path, f'{{"stop_token_ids": [{"1" * 5000}]}}'.encode())
    assert "the body has a number of more than 4300 digits" in nameless.error["message"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, "/tokenize"])
def test_an_encoded_body_is_a_415(server, path):
    body = gzip.compress(json.dumps({"messages": [USER]}).encode())
    reply = server.request(path, body, {"content-encoding": "gzip"})
    assert reply.status == 415
    assert "content-encoding is 'gzip'" in reply.error["message"]
    plain = json.dumps({"prompt": "a"}).encode()
    assert server.request("/tokenize", plain, {"content-encoding": "identity"}).status == 200


@pytest.mark.parametrize("prompt", [[1.0], [[1.0]], ["a", 1], {}, None])
def test_a_prompt_of_no_known_shape_is_told_all_of_them(server, prompt):
    reply = server.request("/v1/completions", json.dumps({"prompt": prompt}).encode())
    assert (reply.status, reply.error["param"]) == (400, "prompt")
    assert "a text, a list of texts, of token ids" in reply.error["message"]


@pytest.mark.parametrize(
    "content", ["I think ", [{"type": "text", "text": "I"}, {"type": "text", "text": "am\n"}]]
)
def test_an_end_that_templates_take_off_is_not_gone_on_from(server, content):
    messages = [USER, {"role": "assistant", "content": content}]
    for path in (CHAT, "/tokenize"):
        body = {"messages": messages, "continue_final_message": True}
        reply = server.request(path, json.dumps(body).encode())
        assert (reply.status, reply.error["param"]) == (400, "messages[1].content")
        assert "white space" in reply.error["message"]
        assert server.request(path, json.dumps({"messages": messages}).encode()).status == 200


@pytest.mark.parametrize("name", ["session_id", "prompt_cache_key", "cache_salt"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_key_of_the_cache_is_text(server, path, name):
    body = {"prompt": "x"} if path != CHAT else {"messages": [{"role": "user", "content": "x"}]}
    reply = server.request(path, json.dumps(body | {name: "\ud800"}).encode())
    assert (reply.status, reply.error["param"]) == (400, name)


def test_a_strict_server_says_what_would_be_clamped(serve):
    server = serve(settings=ServerSettings(drain=0.0, strict=True), max_context=64)
    for path, name in ((CHAT, "max_tokens"), (MESSAGES, "max_tokens")):
        reply = post(server, path, max_tokens=1000)
        assert (reply.status, param_of(reply)) == (400, name)
        assert "would be clamped" in reply.error["message"]


@pytest.mark.parametrize(
    ("path", "tools", "param"),
    [
        (CHAT, [tool("f", "a"), tool("g", "a")], "tools[1].function.parameters"),
        (RESPONSES, [{"type": "function"}, {"type": "function"}], "tools[1].parameters"),
        (MESSAGES, [{"input_schema": {}}, {"input_schema": {}}], "tools[1].input_schema"),
    ],
)
@pytest.mark.parametrize("both", [False, True])
def test_a_tool_that_nothing_satisfies_is_named(server, path, tools, param, both):
    """The engine knows the form of an answer as one, wherever it comes from."""

    def script(prompt, options):
        param = "response_format"
        raise InvalidSchema(f"{param} allows no text at all", param=param, pointer="")

    def strictly(one, name):
        said = {"name": name, "strict": both or name == "g"}
        return {**one, "function": one["function"] | said} if path == CHAT else one | said

    named = [strictly(one, name) for one, name in zip(tools, "fg", strict=True)]
    server.engine.script = script
    reply = post(server, path, tools=named)
    assert (reply.status, param_of(reply)) == (400, "tools" if both else param)
    assert reply.error["message"] == f"{'tools' if both else param} allows no text at all"
