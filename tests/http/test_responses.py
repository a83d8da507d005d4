"""Responses as the official client sees them, whole and streamed."""

from __future__ import annotations

import json

import jsonschema
import pytest

from ninfer_core.contract.events import Channel, Delta, Timings
from ninfer_core.contract.requests import ConsumerMode
from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http.settings import ServerSettings

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
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
    """The events of a raw stream; each names its type twice, and comments are left out."""
    events = []
    for block in reply.text.strip().split("\n\n"):
        if not block.startswith(":"):
            first, second = block.split("\n")
            event = json.loads(second.removeprefix("data: "))
            assert first == f"event: {event['type']}"
            events.append(event)
    return events


def test_an_answer_carries_text_usage_and_settings(server):
    server.engine.script = answer("four", timings=Timings(cached_tokens=6))
    done = create(
        server,
        instructions="Be brief.",
        metadata={"a": "b"},
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        max_output_tokens=9,
        max_tool_calls=3,
        service_tier="auto",
        truncation="disabled",
        temperature=0.25,
        text={"format": {"type": "text"}, "verbosity": "medium"},
        tools=[TOOL],
        parallel_tool_calls=False,
    )
    assert done.id.startswith("resp_")
    assert (done.object, done.status, done.model) == ("response", "completed", "scripted")
    assert done.output_text == "four"
    [message] = done.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert message.id.startswith("msg_")
    assert message.content[0].annotations == []
    assert (done.error, done.incomplete_details) == (None, None)
    assert done.completed_at >= done.created_at
    # "system: Be brief." and "user: hi" with a line end between, and "four"
    assert (done.usage.input_tokens, done.usage.output_tokens) == (26, 4)
    assert done.usage.total_tokens == 30
    assert done.usage.input_tokens_details.cached_tokens == 6
    assert done.usage.output_tokens_details.reasoning_tokens == 0
    assert (done.instructions, done.metadata, done.user) == ("Be brief.", {"a": "b"}, "u")
    assert (done.safety_identifier, done.prompt_cache_key) == ("s", "k")
    assert (done.max_output_tokens, done.max_tool_calls) == (9, 3)
    assert (done.temperature, done.top_p, done.truncation) == (0.25, 1.0, "disabled")
    assert (done.tool_choice, done.parallel_tool_calls) == ("auto", False)
    assert (done.tools[0].name, done.tools[0].strict) == ("weather", False)
    assert (done.text.format.type, done.text.verbosity) == ("text", "medium")
    assert (done.background, done.previous_response_id, done.store) == (False, None, True)
    assert done.timings["prompt_ms"] == 0.0


def test_fields_reach_the_engine(server):
    server.engine.script = answer("a")
    reply = raw(
        server,
        instructions="Be brief.",
        temperature=0.25,
        top_p=0.5,
        max_output_tokens=9,
        reasoning={"effort": "low"},
        tools=[TOOL],
        tool_choice="auto",
        parallel_tool_calls=False,
        include=LOGPROBS,
        top_logprobs=2,
        top_k=7,
        min_p=0.1,
        seed=11,
        stop=["x"],
        thinking_budget=64,
        chat_template_kwargs={"colour": "red"},
        cache_salt="mine",
    )
    assert reply.status == 200
    [(prompt, options)] = server.engine.requests
    assert prompt.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    sampling = options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.25, 0.5, 7)
    assert (sampling.min_p, sampling.seed) == (0.1, 11)
    assert (options.max_new_tokens, options.logprobs, options.stop) == (9, 2, ("x",))
    assert (options.thinking_budget, options.consumer) == (64, ConsumerMode.STREAMING)
    assert (prompt.chat.effort, prompt.chat.template_kwargs) == ("low", {"colour": "red"})
    assert prompt.cache.salt == "mine"
    assert (prompt.tool_choice.mode, prompt.tool_choice.parallel) == ("auto", False)
    [tool] = prompt.tools
    assert tool["function"]["name"] == "weather"
    assert tool["function"]["parameters"] == TOOL["parameters"]


def test_a_thought_a_text_and_a_call_are_three_items(server):
    reply = Reply.of("I look.", reasoning="hm").call("weather", '{"city": ', '"Köln"}')
    server.engine.script = always(reply)
    thought, message, call = create(server, tools=[TOOL]).output
    assert (thought.type, thought.content[0].text, thought.summary) == ("reasoning", "hm", [])
    assert message.content[0].text == "I look."
    assert (call.type, call.name, call.call_id) == ("function_call", "weather", "call_0")
    assert (json.loads(call.arguments), call.status) == ({"city": "Köln"}, "completed")


def test_text_behind_a_call_is_another_message(server):
    reply = Reply.of("one").call("weather", "{}")
    more = tuple(Delta(channel=Channel.CONTENT, text=c) for c in "two")
    server.engine.script = always(Reply(deltas=reply.deltas + more))
    done = create(server, tools=[TOOL])
    assert [item.type for item in done.output] == ["message", "function_call", "message"]
    assert done.output_text == "onetwo"


@pytest.mark.usefixtures("one_by_one")
def test_the_order_of_events(server):
    server.engine.script = always(Reply.of("ab", reasoning="h").call("weather", "{", "}"))
    reply = raw(server, stream=True, tools=[TOOL])
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = events_of(reply)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    added = [event["item"] for event in events if event["type"].endswith("item.added")]
    done = [event["item"] for event in events if event["type"].endswith("item.done")]
    assert [item["status"] for item in added] == ["in_progress"] * 3
    assert [item.get("content") for item in added] == [[], [], None]
    assert added[2]["arguments"] == ""
    assert events[0]["response"]["status"] == "in_progress"
    assert (events[0]["response"]["output"], events[0]["response"]["usage"]) == ([], None)
    assert events[-1]["response"]["output"] == done
    indices = [event["output_index"] for event in events if "output_index" in event]
    assert indices == sorted(indices)
    assert {event["item_id"] for event in events if "item_id" in event} == {
        item["id"] for item in done
    }


def test_a_stream_says_the_same_as_a_whole_answer(server):
    reply = Reply.of("Grüße, 世界 🙂", reasoning="so … hm").call("weather", '{"city": ', '"Köln"}')
    server.engine.script = always(reply)
    whole = create(server, tools=[TOOL])
    with server.client().responses.stream(model="scripted", input="hi", tools=[TOOL]) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        last = stream.get_final_response()
    assert "".join(texts) == whole.output_text == last.output_text == "Grüße, 世界 🙂"
    assert last.usage == whole.usage
    assert last.output[0].content[0].text == whole.output[0].content[0].text
    assert last.output[2].arguments == whole.output[2].arguments == '{"city": "Köln"}'


def test_an_empty_answer_has_no_items(server):
    server.engine.script = answer("")
    done = create(server)
    assert (done.status, done.output, done.output_text) == ("completed", [], "")
    events = events_of(raw(server, stream=True))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "completed",
    ]


def test_silence_is_bridged_with_comments(serve):
    server = serve(
        lambda prompt, options: Reply.of("ab", interval=0.3),
        ServerSettings(drain=0.0, keep_alive=0.1),
    )
    reply = raw(server, stream=True)
    assert ": keep-alive\n\n" in reply.text
    assert events_of(reply)[-1]["response"]["output"][0]["content"][0]["text"] == "ab"


def test_input_tokens_are_those_of_the_response(server):
    server.engine.script = answer("ok")
    fields = {"instructions": "Be brief.", "input": [{"role": "user", "content": "hi"}]}
    counted = server.client().responses.input_tokens.count(model="scripted", **fields)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == 26
    assert server.engine.requests == []
    first = create(server)
    with_past = server.client().responses.input_tokens.count(
        model="scripted", input="hi", previous_response_id=first.id
    )
    # "user: hi", "assistant: ok", "user: hi" on three lines
    assert with_past.input_tokens == 8 + 1 + 13 + 1 + 8


def test_max_output_tokens_beyond_the_context_is_clamped_and_said(serve):
    server = serve(answer("a" * 200), max_context=64)
    reply = raw(server, max_output_tokens=1000)
    assert reply.status == 200
    assert reply.headers["x-ninfer-warning"] == "max_output_tokens was clamped from 1000 to 56"
    assert "max_output_tokens was clamped" in reply.json["warnings"][0]
    assert (reply.json["status"], reply.json["usage"]["output_tokens"]) == ("incomplete", 56)


def test_a_wanted_summary_is_answered_with_the_thought_and_a_warning(server):
    server.engine.script = answer("4", reasoning="2+2")
    reply = raw(server, reasoning={"summary": "auto"})
    assert "reasoning.summary has no effect" in reply.headers["x-ninfer-warning"]
    assert reply.json["output"][0]["content"] == [{"type": "reasoning_text", "text": "2+2"}]
    assert reply.json["reasoning"] == {"effort": None, "summary": "auto"}


def test_replies_are_as_the_document_says(server):
    document = json.loads(server.request("/openapi.json").text)
    server.engine.script = always(Reply.of("a", reasoning="b").call("weather", "{}"))

    def check(reply, method, path):
        assert reply.status == 200
        replies = document["paths"][path][method]["responses"]
        assert "422" not in replies
        schema = replies["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(reply.json, {**schema, "components": document["components"]})

    done = raw(server, tools=[TOOL], metadata={"a": "b"})
    check(done, "post", "/v1/responses")
    check(raw(server, background=True), "post", "/v1/responses")
    where = f"/v1/responses/{done.json['id']}"
    check(server.request(where), "get", "/v1/responses/{response_id}")
    items = server.request(f"{where}/input_items")
    check(items, "get", "/v1/responses/{response_id}/input_items")
    counted = server.request("/v1/responses/input_tokens", b'{"input": "hi"}')
    check(counted, "post", "/v1/responses/input_tokens")
