"""The OpenAPI document: routes, typed fields, and replies that are as it says."""

from __future__ import annotations

import json

import jsonschema
import pytest

from ninfer_core.testing.scripted_engine import failing
from ninfer_core.testing.scripted_reply import Reply

HELLO = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.fixture
def document(server):
    return json.loads(server.request("/openapi.json").text)


def described(document, method, path, status=200):
    """The schema of a reply, with the components that it refers to."""
    replies = document["paths"][path][method]["responses"]
    schema = replies[str(status)]["content"]["application/json"]["schema"]
    return {**schema, "components": document["components"]}


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/v1/chat/completions", "post"),
        ("/v1/completions", "post"),
        ("/v1/models", "get"),
        ("/v1/models/{model}", "get"),
        ("/tokenize", "post"),
        ("/detokenize", "post"),
        ("/health", "get"),
        ("/ready", "get"),
    ],
)
def test_every_route_describes_its_replies(document, path, method):
    operation = document["paths"][path][method]
    assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    assert "422" not in operation["responses"]
    assert {"400", "401", "503"} <= set(operation["responses"])
    assert ("requestBody" in operation) == (method == "post")


@pytest.mark.parametrize(
    "name", ["ChatRequest", "CompletionRequest", "TokenizeRequest", "DetokenizeRequest"]
)
def test_every_field_of_a_request_has_a_type(document, name):
    def typed(schema):
        if "anyOf" in schema:
            return all(map(typed, schema["anyOf"]))
        return any(key in schema for key in ("type", "$ref", "enum", "const"))

    schema = document["components"]["schemas"][name]
    assert schema["properties"]
    assert [field for field, entry in schema["properties"].items() if not typed(entry)] == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2, "logprobs": True, "top_logprobs": 1},
        {"return_token_ids": True, "max_tokens": 9999},
        {"tools": TOOLS},
    ],
)
def test_chat_replies_are_as_described(server, document, fields):
    reply = Reply.of("ab", reasoning="c")
    server.engine.script = lambda prompt, options: reply.call("f", "{}") if prompt.tools else reply
    answered = server.chat(**fields)
    jsonschema.validate(answered.json, described(document, "post", "/v1/chat/completions"))


@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"logprobs": 1, "return_token_ids": True}])
def test_text_replies_are_as_described(server, document, fields):
    body = json.dumps({"prompt": ["ab", "c"], **fields}).encode()
    answered = server.request("/v1/completions", body)
    jsonschema.validate(answered.json, described(document, "post", "/v1/completions"))


def test_other_replies_are_as_described(server, document):
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [97]})):
        reply = server.request(path, json.dumps(body).encode())
        assert reply.status == 200
        jsonschema.validate(reply.json, described(document, "post", path))
    for path in ("/health", "/ready", "/v1/models"):
        jsonschema.validate(server.request(path).json, described(document, "get", path))


def test_errors_are_as_described(server, document):
    from ninfer_core.contract.errors import Overloaded

    wrong = server.chat(temperature=-1)
    jsonschema.validate(wrong.json, described(document, "post", "/v1/chat/completions", 400))
    server.engine.script = failing(Overloaded("full"))
    full = server.chat()
    assert full.status == 429
    assert full.headers["retry-after"]
    jsonschema.validate(full.json, described(document, "post", "/v1/chat/completions", 429))
