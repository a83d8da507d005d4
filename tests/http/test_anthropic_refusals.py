"""Wrong messages: the field is named, and the engine sees none of them."""

from __future__ import annotations

import json

import anthropic
import pytest

from ninfer_core.contract.errors import Unsupported
from ninfer_core.testing.scripted_engine import failing
from ninfer_gateway_http.settings import ServerSettings

HELLO = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
BASE = {"model": "m", "max_tokens": 2000, "messages": [HELLO]}
SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}
MARK = {"cache_control": {"type": "ephemeral"}}


def client_of(server, key="none"):
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=20)


def post(server, path="/v1/messages", headers=None, **fields):
    return server.request(path, json.dumps(BASE | fields).encode(), headers)


def said(*blocks, role="user"):
    return {"messages": [{"role": role, "content": list(blocks)}]}


def round_of(*results, calls=("a",)):
    uses = [{"type": "tool_use", "id": c, "name": "f", "input": {}} for c in calls]
    answers = [{"type": "tool_result", "tool_use_id": r} for r in results]
    turns = [{"role": "assistant", "content": uses}, {"role": "user", "content": answers}]
    return {"messages": [HELLO, *turns, HELLO], "tools": [TOOL]}


TEXT = {"type": "text", "text": "a"}
WRONG = {
    "no tokens": ({"max_tokens": 0}, "max_tokens"),
    "text for a number": ({"max_tokens": "many"}, "max_tokens"),
    "budget too small": (
        {"thinking": {"type": "enabled", "budget_tokens": 1023}},
        "thinking.budget_tokens",
    ),
    "budget too large": (
        {"thinking": {"type": "enabled", "budget_tokens": 2000}},
        "thinking.budget_tokens",
    ),
    "no budget": ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    "thinking of a kind": ({"thinking": {"type": "deep"}}, "thinking.type"),
    "thinking between tools": ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    "display": ({"thinking": {"type": "adaptive", "display": "loud"}}, "thinking.display"),
    "effort": ({"output_config": {"effort": "some"}}, "output_config.effort"),
    "format": ({"output_config": {"format": SCHEMA}}, "output_config.format"),
    "older format": ({"output_format": SCHEMA}, "output_config.format"),
    "format of a kind": (
        {"output_config": {"format": {"type": "xml"}}},
        "output_config.format.type",
    ),
    "task budget": ({"output_config": {"task_budget": {}}}, "output_config.task_budget"),
    "temperature": ({"temperature": -1}, "temperature"),
    "top_p": ({"top_p": 1.5}, "top_p"),
    "empty stop": ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
    "many stops": ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
    "any tool": ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice"),
    "one tool": ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
    "unknown tool": (
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}},
        "tool_choice.name",
    ),
    "no tools": ({"tool_choice": {"type": "any"}}, "tool_choice"),
    "choice of a kind": ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
    "server tool": (
        {"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}]},
        "tools[1].type",
    ),
    "deferred tool": ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
    "tool without schema": ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    "tool with a bad schema": (
        {"tools": [{"name": "f", "input_schema": {"type": "object", "properties": {"a": 1}}}]},
        "tools[0].input_schema",
    ),
    "tool with a bad name": ({"tools": [{**TOOL, "name": "f f"}]}, "tools[0].name"),
    "tool twice": ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    "role": ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    "no messages": ({"messages": []}, "messages"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "image": (said(TEXT, {"type": "image", "source": {}}), "messages[0].content[1].type"),
    "document": (said({"type": "document"}), "messages[0].content[0].type"),
    "use by a user": (said({"type": "tool_use", "id": "a"}), "messages[0].content[0].type"),
    "no text": (said({"type": "text"}), "messages[0].content[0].text"),
    "no block": (said("a"), "messages[0].content[0]"),
    "image as result": (
        {
            "messages": [
                *round_of()["messages"][:2],
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}
                    ],
                },
            ]
        },
        "messages[2].content[0].content[0].type",
    ),
    "prefill and thinking": (
        {
            "messages": [HELLO, {"role": "assistant", "content": "so"}],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
        "thinking",
    ),
    "prefill with a space": (
        {"messages": [HELLO, {"role": "assistant", "content": "so "}]},
        "messages[1].content",
    ),
    "five marks": (said(*[{**TEXT, **MARK}] * 5), "messages[0].content[4].cache_control"),
    "five marks with tools": (
        {**said(*[{**TEXT, **MARK}] * 4), "tools": [{**TOOL, **MARK}]},
        "messages[0].content[3].cache_control",
    ),
    "mark of a kind": (
        said({**TEXT, "cache_control": {"type": "forever"}}),
        "messages[0].content[0].cache_control.type",
    ),
    "lifetime": ({"cache_control": {"type": "ephemeral", "ttl": "1d"}}, "cache_control.ttl"),
    "citations": (
        said({**TEXT, "citations": [{"type": "char_location"}]}),
        "messages[0].content[0].citations",
    ),
    "user id": ({"metadata": {"user_id": 7}}, "metadata.user_id"),
    "tier": ({"service_tier": "priority"}, "service_tier"),
    "speed": ({"speed": "fast"}, "speed"),
    "container": ({"container": "c"}, "container"),
    "servers": ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    "edit": (
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        "context_management.edits[0].type",
    ),
    "half a character": ({"model": "\ud800"}, "model"),
}


@pytest.mark.parametrize(("fields", "param"), WRONG.values(), ids=WRONG)
def test_a_wrong_field_is_named(server, fields, param):
    reply = post(server, **fields)
    assert (reply.status, reply.json["type"]) == (400, "error")
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["details"]["param"] == param
    assert param.split(".")[-1].split("[")[0] in reply.error["message"]
    assert server.engine.requests == []


UNMATCHED = {
    "no result": (round_of(), "'a' has no tool_result block", "messages[1].content[0].id"),
    "one of two": (
        round_of("a", calls="ab"),
        "'b' has no tool_result",
        "messages[1].content[1].id",
    ),
    "another": (round_of("a", "x"), "'x' is the id of no", "messages[2].content[1].tool_use_id"),
    "twice": (round_of("a", "a"), "'a' has a tool_result", "messages[2].content[1].tool_use_id"),
    "same id": (round_of("a", calls="aa"), "'a' is taken", "messages[1].content[1].id"),
    "at the end": (
        {"messages": round_of()["messages"][:2]},
        "'a' has no tool_result",
        "messages[1].content[0].id",
    ),
}


@pytest.mark.parametrize(("fields", "words", "param"), UNMATCHED.values(), ids=UNMATCHED)
def test_results_match_their_calls_exactly(server, fields, words, param):
    with pytest.raises(anthropic.BadRequestError, match=words) as caught:
        client_of(server).messages.create(**BASE | fields)
    assert caught.value.body["error"]["details"]["param"] == param


def test_a_count_refuses_what_an_answer_refuses(server):
    for fields, param in (WRONG["image"], WRONG["any tool"], WRONG["no budget"]):
        reply = post(server, "/v1/messages/count_tokens", **fields)
        assert (reply.status, reply.error["details"]["param"]) == (400, param)


def test_unknown_fields_are_said_or_refused(serve):
    reply = post(serve(), colour="red", messages=[{**HELLO, "name": "x"}])
    assert reply.status == 200
    warning = reply.headers["x-ninfer-warning"]
    assert "unknown field 'colour' was ignored" in warning
    assert "unknown field 'name' of messages was ignored" in warning
    strict = serve(settings=ServerSettings(drain=0.0, strict=True))
    assert post(strict).status == 200
    for fields in ({"colour": "red"}, {"messages": [{**HELLO, "name": "x"}]}):
        reply = post(strict, **fields)
        assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")


def test_the_engines_own_refusals_use_the_names_of_the_wire(server):
    error = Unsupported("chat.thinking has no effect", param="chat.thinking")
    server.engine.script = failing(error)
    reply = post(server)
    assert (reply.error["message"], reply.error["details"]["param"]) == (
        "thinking has no effect",
        "thinking",
    )
