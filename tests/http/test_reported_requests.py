"""Reported faults of requests and of what ends them, over `ninfer serve` of the demo model."""

from __future__ import annotations

import contextlib
import json
import socket
from urllib.parse import urlsplit

import pytest

HELLO = [{"role": "user", "content": "What is 17 + 25?"}]


def counted(demo, messages, **fields):
    reply = demo.post("/v1/chat/completions", messages=messages, max_tokens=0, **fields)
    assert reply.status == 200, reply.text
    return reply.json["usage"]["prompt_tokens"]


def test_a_thought_sent_back_counts_alike_under_both_names(demo):
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "timer", "arguments": "{}"}}
        ],
    }
    result = {"role": "tool", "tool_call_id": "c", "content": "done"}

    def turns(**thought):
        return counted(demo, [*HELLO, {**call, **thought}, result])

    spelled = turns(reasoning_content="seventeen and more")
    assert turns(reasoning="seventeen and more") == spelled
    assert turns() < spelled


@pytest.mark.parametrize("stream", [False, True])
def test_the_usage_of_a_stream_comes_once_and_only_when_asked_for(demo, stream):
    options = {"stream_options": {"include_usage": True}} if stream else {}
    reply = demo.post("/v1/chat/completions", messages=HELLO, stream=True, **options)
    events = reply.events
    assert events[-1] == "[DONE]"
    with_usage = [event for event in events[:-1] if event.get("usage")]
    if stream:
        assert with_usage == [events[-2]]
        assert events[-2]["choices"] == []
    else:
        assert with_usage == []
    assert all("choices" in event for event in events[:-1])


@pytest.mark.parametrize(
    "roles", [["system", "system", "user"], ["user", "system"], ["developer", "user"]]
)
def test_system_messages_anywhere(demo, roles):
    messages = [{"role": role, "content": f"{role} says hi"} for role in roles]
    reply = demo.post("/v1/chat/completions", messages=messages, max_tokens=4)
    assert reply.status == 200, reply.text


def test_a_template_that_refuses_is_a_400(demo):
    reply = demo.post("/v1/chat/completions", messages=[{"role": "system", "content": "a"}])
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"


def test_a_limit_over_the_context_is_clamped_and_a_prompt_over_it_refused(demo):
    for field in ("max_tokens", "max_completion_tokens"):
        reply = demo.post("/v1/chat/completions", messages=HELLO, **{field: 1024})
        assert reply.status == 200
        assert "clamped" in reply.headers["x-ninfer-warning"]
    long = [{"role": "user", "content": "word " * 1100}]
    refused = demo.post("/v1/chat/completions", messages=long)
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
    assert refused.error["max_context"] == 1024
    assert refused.error["prompt_tokens"] > 1024


@pytest.mark.parametrize(
    "bias",
    [
        {"9999999": 5},
        {"-1": 5},
        {"abc": 5},
        {"5": 1e9},
        {"5": "x"},
        {str(i): 1 for i in range(5000)},
        {"1" * 5000: 1},
    ],
    ids=["beyond", "negative", "text", "huge", "no number", "many", "long"],
)
def test_a_wrong_bias_leaves_the_engine_alone(demo, bias):
    reply = demo.post("/v1/chat/completions", messages=HELLO, logit_bias=bias, max_tokens=4)
    assert (reply.status, reply.error["param"].split(".")[0]) == (400, "logit_bias")
    assert demo.get("/ready").status == 200


def asking(demo, stream, talk=HELLO):
    """A connection on which an answer without an end was asked for."""
    body = {"messages": talk, "ignore_eos": True, "max_tokens": 900, "stream": stream}
    data = json.dumps(body).encode()
    where = urlsplit(demo.url)
    sock = socket.create_connection((where.hostname, where.port), timeout=20)
    sock.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        + f"content-length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return sock


@pytest.mark.parametrize("stream", [False, True])
def test_a_dropped_connection_ends_its_request(demo, eventually, stream):
    assert demo.get("/health").json["running"] == 0
    with asking(demo, stream):
        eventually(lambda: demo.get("/health").json["running"] == 1)
    eventually(lambda: demo.get("/health").json["running"] == 0)
    again = demo.post("/v1/chat/completions", messages=HELLO, temperature=0)
    assert again.json["choices"][0]["message"]["content"] == "42"


@pytest.mark.parametrize("stream", [False, True])
def test_a_dropped_connection_ends_the_reading_of_its_prompt(demo, eventually, stream):
    talk = [{"role": "user", "content": " ".join(map(str, range(230)))}]
    length = demo.post("/tokenize", messages=talk).json["count"]
    assert length > 700
    with asking(demo, stream, talk):
        eventually(lambda: demo.get("/health").json["running"] == 1)
    eventually(lambda: demo.get("/health").json["running"] == 0)
    again = demo.post("/v1/chat/completions", messages=HELLO, temperature=0)
    assert again.json["choices"][0]["message"]["content"] == "42"


def test_a_dropped_connection_leaves_the_queue(demo, eventually):
    with contextlib.ExitStack() as running:
        for _ in range(4):
            running.enter_context(asking(demo, stream=True))
        eventually(lambda: demo.get("/health").json["running"] == 4)
        with asking(demo, stream=False):
            eventually(lambda: demo.get("/health").json["running"] == 5)
        eventually(lambda: demo.get("/health").json["running"] == 4)
    eventually(lambda: demo.get("/health").json["running"] == 0)


def test_ready_and_health_of_a_server_that_works(demo):
    for path in ("/health", "/ready"):
        reply = demo.get(path)
        assert (reply.status, reply.json["status"]) == (200, "ok")
