"""Responses that a limit cuts off, and the log-probabilities of their tokens."""

from __future__ import annotations

import json

import pytest

from ninfer_core.contract.events import Channel, Delta, FinishReason
from ninfer_core.testing.scripted_reply import Reply

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
LOGPROBS = ["message.output_text.logprobs"]


def always(reply):
    return lambda prompt, options: reply


def answer(*args, **kwargs):
    return always(Reply.of(*args, **kwargs))


def create(server, **fields):
    return server.client().responses.create(**{"model": "scripted", "input": "hi"} | fields)


def raw(server, **fields):
    return server.request("/v1/responses", json.dumps({"input": "hi"} | fields).encode())


def events_of(reply):
    lines = (line for line in reply.text.splitlines() if line.startswith("data: "))
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("limit", [FinishReason.OUTPUT_LIMIT, FinishReason.CONTEXT_CAPACITY])
def test_what_the_limit_cuts_off_is_incomplete(server, limit, stream):
    server.engine.script = always(Reply.of("a", finish=limit).call("weather", '{"ci'))
    reply = raw(server, stream=stream, tools=[TOOL])
    response = events_of(reply)[-1]["response"] if stream else reply.json
    if stream:
        assert events_of(reply)[-1]["type"] == "response.incomplete"
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    message, call = response["output"]
    assert (message["status"], call["status"]) == ("completed", "incomplete")
    assert call["arguments"] == '{"ci'
    assert response["completed_at"] is None


def test_a_cut_text_is_incomplete_and_a_natural_end_is_not(server):
    server.engine.script = answer("abcdef")
    cut = create(server, max_output_tokens=3)
    assert (cut.status, cut.output_text, cut.output[0].status) == (
        "incomplete",
        "abc",
        "incomplete",
    )
    assert cut.usage.output_tokens == 3
    server.engine.script = answer("ab", finish=FinishReason.STOP_STRING)
    assert create(server).status == "completed"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_the_messages_tokens(server, stream):
    server.engine.script = answer("é!", reasoning="h")
    reply = raw(server, stream=stream, include=LOGPROBS, top_logprobs=2)
    response = events_of(reply)[-1]["response"] if stream else reply.json
    rows = response["output"][1]["content"][0]["logprobs"]
    # token i has -(i % 4) / 4, the thought is token 0; é is C3 A9, ! is 21
    assert [row["bytes"] for row in rows] == [[0xC3], [0xA9], [0x21]]
    assert [row["logprob"] for row in rows] == [-0.25, -0.5, -0.75]
    assert [(t["token"], t["logprob"]) for t in rows[2]["top_logprobs"]] == [
        ("!", -0.75),
        ('"', -1.0),
    ]
    if stream:
        deltas = [e for e in events_of(reply) if e["type"] == "response.output_text.delta"]
        assert [row for event in deltas for row in event["logprobs"]] == rows


def test_a_token_without_text_is_told_with_the_next(server):
    # The second byte of é completes it, so the first has no text of its own.
    deltas = (Delta(channel=Channel.CONTENT), *Reply.of("éa").deltas)
    server.engine.script = always(Reply(deltas=deltas))
    done = create(server, include=LOGPROBS)
    assert [row.bytes for row in done.output[0].content[0].logprobs] == [[0xC3], [0xA9], [0x61]]


def test_no_logprobs_unless_asked_for(server):
    server.engine.script = answer("a")
    assert create(server).output[0].content[0].logprobs == []
    assert server.engine.requests[0][1].logprobs is None
