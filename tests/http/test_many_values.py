"""Bodies with very many values: refused before they cost much, whatever they are wrong with."""

from __future__ import annotations

import asyncio
import json

import pytest
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from ninfer_gateway_http.bodies import MOST_CONTAINERS, MOST_VALUES, read_json
from ninfer_gateway_http.completions_schema import CompletionRequest
from ninfer_gateway_http.schema import ChatRequest

TALK = [{"role": "user", "content": "hi"}]
ROUTES = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/tokenize"]


@pytest.mark.parametrize("path", ROUTES)
def test_more_values_than_any_request_needs_are_a_413(server, path):
    body = b'{"messages":[' + b"0," * MOST_VALUES + b"0]}"
    reply = server.request(path, body)
    assert reply.status == 413
    error = reply.error
    assert "values" in error["message"]
    assert error.get("code", error["type"]) == "request_too_large"
    assert server.chat().status == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_commas_in_a_text_are_no_values(server, path):
    text = '[{,"\\' * MOST_VALUES
    reply = server.request(path, json.dumps({"prompt": text}).encode())
    expected = (200, None) if path == "/tokenize" else (400, "context_length_exceeded")
    got = reply.json
    assert (reply.status, got.get("error", {}).get("code")) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "' + "\\\\" * 9 + '", "b": [1, 2, {"c": "],["}]}',
        '"\\""',
        "[]",
        "1",
        '{"a":"\\u005c"}',
    ],
)
def test_a_body_is_read_as_by_the_library(monkeypatch, text):
    monkeypatch.setattr("ninfer_gateway_http.bodies.AT_ONCE_BYTES", 0)
    monkeypatch.setattr("ninfer_gateway_http.bodies.MOST_VALUES", 6)
    assert asyncio.run(read_json(text.encode())) == json.loads(text)
    assert asyncio.run(read_json(text.encode("utf-16"))) == json.loads(text)


@pytest.mark.parametrize(
    "text", ["[1,1,1,1,1,1,1]", '{"a":[[[[[[["x"]]]]]]]}', '[",",{"a":1},[2,3,4]]']
)
def test_values_are_counted_outside_of_texts(monkeypatch, text):
    monkeypatch.setattr("ninfer_gateway_http.bodies.AT_ONCE_BYTES", 0)
    monkeypatch.setattr("ninfer_gateway_http.bodies.MOST_VALUES", 6)
    with pytest.raises(HTTPException, match="413"):
        asyncio.run(read_json(text.encode()))


def test_containers_are_counted_apart_from_other_values(server):
    """Each object costs as much as many ids, so that fewer of them are taken."""
    allowed = MOST_CONTAINERS - 2  # besides the body and the list
    for count, status in ((allowed, 400), (allowed + 1, 413)):
        reply = server.request("/v1/completions", json.dumps({"prompt": [{}] * count}).encode())
        assert reply.status == status
    assert "objects and lists" in reply.error["message"]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, -2.5e3, true, false, null, "\\u00e4\\ud83d\\ude00"], "b": {"": [[], {}]}}',
        '{"a": 1, "a": 2}',
        "[NaN, -Infinity, 1e999, 123456789012345678901234567890]",
    ],
)
def test_what_is_read_in_steps_is_the_same(monkeypatch, text):
    monkeypatch.setattr("ninfer_gateway_http.bodies.AT_ONCE_BYTES", 0)
    monkeypatch.setattr("ninfer_gateway_http.bodies.STEP_VALUES", 0)
    assert repr(asyncio.run(read_json(text.encode()))) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["", "{", '{"a" 1}', "[1,]", '"a', "nul", "[] x", "[" * 100_000])
def test_what_cannot_be_read_in_steps_is_refused_alike(monkeypatch, text):
    monkeypatch.setattr("ninfer_gateway_http.bodies.AT_ONCE_BYTES", 0)
    monkeypatch.setattr("ninfer_gateway_http.bodies.STEP_VALUES", -1)
    monkeypatch.setattr("ninfer_gateway_http.bodies.MOST_CONTAINERS", 1 << 20)
    with pytest.raises((ValueError, RecursionError)) as expected:
        json.loads(text)
    with pytest.raises(expected.type) as raised:
        asyncio.run(read_json(text.encode()))
    if expected.type is not RecursionError:
        assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (CompletionRequest, {"prompt": [None] * 300_000}),
        (CompletionRequest, {"prompt": [[None] * 300_000]}),
        (ChatRequest, {"messages": [1] * 300_000}),
        (ChatRequest, {"messages": TALK, "tools": [1] * 300_000}),
        (ChatRequest, {"messages": TALK, "stop": [1] * 300_000}),
        (ChatRequest, {"messages": TALK, "stop_token_ids": ["a"] * 300_000}),
        (ChatRequest, {"messages": TALK, "logit_bias": {str(i): "a" for i in range(300_000)}}),
    ],
)
def test_of_many_wrong_values_only_the_first_are_told(model, fields):
    """One error for each of them would take thousands of times the memory of the body."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(fields)
    assert caught.value.error_count() < 10


def test_too_many_biases_are_a_400_that_says_so(server):
    reply = server.chat(logit_bias={str(token): 1 for token in range(1025)})
    assert (reply.status, reply.error["param"]) == (400, "logit_bias")
    assert "1025 entries; at most 1024" in reply.error["message"]


@pytest.mark.parametrize("count", [1, 4095, 4096, 4097, 9000])
def test_ids_come_whole_however_many_they_are(server, count):
    text = "ä," * count
    reply = server.request(
        "/tokenize", json.dumps({"prompt": text, "return_token_strs": True}).encode()
    )
    ids = list(text.encode())
    said = {"count": len(ids), "max_model_len": 4096, "tokens": ids}
    assert reply.json == {**said, "token_strs": [bytes([i]).decode(errors="replace") for i in ids]}
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("count", [257, 350])
def test_long_conversations_are_read_as_short_ones(server, count):
    talk = [{"role": "user", "content": str(n)} for n in range(count)]
    body = {"messages": talk, "max_tokens": 9}
    for path in ("/v1/chat/completions", "/v1/messages"):
        server.engine.requests.clear()
        reply = server.request(path, json.dumps({**body, "model": "scripted"}).encode())
        assert reply.status == 200, reply.text
        assert len(server.engine.requests[0][0].messages) == count


@pytest.mark.parametrize("depth", [300, 2000, 60_000, 200_000])
def test_nesting_of_any_depth_is_a_400(server, depth):
    for filler in (b"", b"1," * 70_000):
        nested = b"[" * depth + b"]" * depth
        reply = server.request("/v1/completions", b'{"prompt": [' + filler + nested + b"]}")
        assert reply.status == 400
    assert server.chat().status == 200
