"""Chat completions as the official client sees them, streaming and not."""

from __future__ import annotations

import json

import pytest

from ninfer_core.contract.events import FinishReason, Timings
from ninfer_core.contract.requests import ConsumerMode
from ninfer_core.testing.scripted_engine import ScriptedEngine
from ninfer_core.testing.scripted_reply import Reply

HELLO = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
    }
]


def always(reply):
    """A script that answers everything with one reply."""
    return lambda prompt, options: reply


def answer(*args, **kwargs):
    return always(Reply.of(*args, **kwargs))


def test_an_answer_carries_text_usage_and_model(server):
    server.engine.script = answer("four")
    client = server.client()
    done = client.chat.completions.create(model="scripted", messages=HELLO)
    assert done.object == "chat.completion"
    assert done.model == "scripted"
    [choice] = done.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "four")
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    # "user: hi" and "four", one token for each byte
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (8, 4)
    assert done.usage.total_tokens == 12
    assert done.usage.prompt_tokens_details.cached_tokens == 0


def test_cached_tokens_are_those_of_the_engine(server):
    server.engine.script = answer("four", timings=Timings(cached_tokens=6))
    client = server.client()
    whole = client.chat.completions.create(model="scripted", messages=HELLO)
    *_, last = client.chat.completions.create(
        model="scripted", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    for usage in (whole.usage, last.usage):
        assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens) == (8, 6)


def test_a_stream_says_the_same_as_a_whole_answer(server):
    server.engine.script = answer("Grüße, 世界 🙂", reasoning="so … hm")
    client = server.client()
    whole = client.chat.completions.create(model="scripted", messages=HELLO)
    chunks = list(
        client.chat.completions.create(
            model="scripted", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert deltas[0].role == "assistant"
    assert "".join(d.content or "" for d in deltas) == whole.choices[0].message.content
    thought = "".join(getattr(d, "reasoning_content", "") for d in deltas)
    assert thought == whole.choices[0].message.reasoning_content == "so … hm"
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "stop"
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_reasoning_is_sent_under_both_names(server):
    server.engine.script = answer("4", reasoning="2+2")
    message = server.chat().json["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "2+2"
    events = server.chat(stream=True).events[:-1]
    for key in ("reasoning", "reasoning_content"):
        assert "".join(e["choices"][0]["delta"].get(key, "") for e in events) == "2+2"


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_is_accepted_under_both_names(server, key):
    turns = [*HELLO, {"role": "assistant", "content": "4", key: "2+2"}, *HELLO]
    body = json.dumps({"messages": turns}).encode()
    assert server.request("/v1/chat/completions", body).status == 200
    assert server.engine.requests[0][0].messages[1]["reasoning_content"] == "2+2"


def test_usage_comes_last_without_choices_and_only_when_asked_for(server):
    server.engine.script = answer("ok")
    events = server.chat(stream=True, stream_options={"include_usage": True}).events
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == 2
    assert not any(event.get("usage") for event in events[:-2])
    plain = server.chat(stream=True).events
    assert plain[-1] == "[DONE]"
    assert all(event["choices"] and not event.get("usage") for event in plain[:-1])


def test_timings_are_always_there(server):
    times = Timings(
        queue=0.125, prefill=0.5, decode=0.25, drafted=(4, 2), accepted=(3, 1), cached_tokens=3
    )
    server.engine.script = answer("okay", timings=times)
    for timings in (server.chat().json["timings"], server.chat(stream=True).events[-2]["timings"]):
        # eight tokens of prompt, five of them read in half a second; three more after the first
        assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (3, 5, 4)
        assert (timings["prompt_ms"], timings["predicted_ms"], timings["queue_ms"]) == (
            500.0,
            250.0,
            125.0,
        )
        assert (timings["prompt_per_second"], timings["predicted_per_second"]) == (10.0, 12.0)
        assert (timings["draft_n"], timings["draft_n_accepted"]) == (6, 4)
        assert timings["reuse_reason"] == "disabled"
        assert timings["reuse_point"] is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("finish", "called", "expected"),
    [
        (FinishReason.STOP_TOKEN, False, "stop"),
        (FinishReason.STOP_STRING, False, "stop"),
        (FinishReason.OUTPUT_LIMIT, False, "length"),
        (FinishReason.CONTEXT_CAPACITY, False, "length"),
        (FinishReason.STOP_TOKEN, True, "tool_calls"),
        (FinishReason.TOOL_CALLS, True, "tool_calls"),
        (FinishReason.OUTPUT_LIMIT, True, "length"),
        (FinishReason.CONTEXT_CAPACITY, True, "length"),
    ],
)
def test_finish_reason_is_length_whenever_the_limit_ended_it(
    server, finish, called, expected, stream
):
    reply = Reply.of("", finish=finish)
    reply = reply.call("weather", '{"ci') if called else reply
    server.engine.script = always(reply)
    answered = server.chat(stream=stream, tools=TOOLS)
    choice = answered.events[-2] if stream else answered.json
    assert choice["choices"][0]["finish_reason"] == expected


@pytest.mark.usefixtures("one_by_one")
def test_a_call_streams_its_arguments_piece_by_piece(server):
    reply = Reply.of("I look.").call("weather", '{"ci', 'ty": ', '"Köln"}').call("time", "{}")
    server.engine.script = always(reply)
    client = server.client()
    chunks = list(
        client.chat.completions.create(
            model="scripted", messages=HELLO, tools=TOOLS, stream=True, tool_choice="auto"
        )
    )
    pieces = [call for c in chunks for call in c.choices[0].delta.tool_calls or []]
    first = pieces[0]
    assert (first.index, first.id, first.type) == (0, "call_0", "function")
    assert (first.function.name, first.function.arguments) == ("weather", "")
    assert [p.function.arguments for p in pieces if p.index == 0] == [
        "",
        '{"ci',
        'ty": ',
        '"Köln"}',
    ]
    assert all(p.id is None and p.function.name is None for p in pieces[1:4])
    assert (pieces[4].index, pieces[4].id, pieces[4].function.name) == (1, "call_1", "time")


def test_whole_calls_in_a_whole_answer(server):
    reply = Reply.of("").call("weather", '{"city": ', '"Köln"}')
    server.engine.script = always(reply)
    client = server.client()
    done = client.chat.completions.create(model="scripted", messages=HELLO, tools=TOOLS)
    [call] = done.choices[0].message.tool_calls
    assert (call.id, call.type, call.function.name) == ("call_0", "function", "weather")
    assert json.loads(call.function.arguments) == {"city": "Köln"}
    assert done.choices[0].message.content is None


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_name_every_generated_token(server, stream):
    server.engine.script = answer("é!")
    reply = server.chat(stream=stream, logprobs=True, top_logprobs=2)
    if stream:
        chunks = [e["choices"][0]["logprobs"] for e in reply.events[:-1]]
        content = [row for chunk in chunks if chunk for row in chunk["content"]]
    else:
        content = reply.json["choices"][0]["logprobs"]["content"]
    # é is C3 A9, ! is 21; token i has -(i % 4) / 4, its alternative the next byte value at -0.25
    assert [row["bytes"] for row in content] == [[0xC3], [0xA9], [0x21]]
    assert [row["logprob"] for row in content] == [0.0, -0.25, -0.5]
    assert content[2]["token"] == "!"
    assert [(t["token"], t["logprob"]) for t in content[2]["top_logprobs"]] == [
        ("!", -0.5),
        ('"', -0.75),
    ]


def test_no_logprobs_unless_asked_for(server):
    server.engine.script = answer("a")
    assert server.chat().json["choices"][0]["logprobs"] is None


def test_fields_reach_the_engine(server):
    server.engine.script = answer("a")
    reply = server.chat(
        temperature=0.25,
        top_p=0.5,
        top_k=7,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1.5,
        repetition_penalty=1.25,
        seed=11,
        logit_bias={"65": -100, "66": 2.5},
        max_tokens=9,
        min_tokens=2,
        stop=["x", "y"],
        stop_token_ids=[3],
        ignore_eos=True,
        logprobs=True,
        thinking_budget=64,
        reasoning_effort="low",
        enable_thinking=True,
        chat_template_kwargs={"colour": "red"},
        cache_salt="mine",
    )
    assert reply.status == 200
    [(prompt, options)] = server.engine.requests
    sampling = options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (
        0.25,
        0.5,
        7,
        0.1,
    )
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1.5)
    assert (sampling.repetition_penalty, sampling.seed) == (1.25, 11)
    assert dict(sampling.logit_bias) == {65: -100, 66: 2.5}
    assert (options.max_new_tokens, options.min_tokens, options.stop) == (9, 2, ("x", "y"))
    assert (options.stop_token_ids, options.ignore_eos) == ((3,), True)
    assert (options.logprobs, options.thinking_budget) == (0, 64)
    assert options.consumer is ConsumerMode.AGGREGATE
    assert (prompt.chat.thinking, prompt.chat.effort) == (True, "low")
    assert prompt.chat.template_kwargs == {"colour": "red"}
    assert prompt.cache.salt == "mine"


def test_what_is_left_out_is_the_models_default(server):
    server.engine.script = answer("a")
    assert server.chat(stream=True, temperature=None, stop="z").status == 200
    [(prompt, options)] = server.engine.requests
    assert options.sampling == ScriptedEngine().load_summary().default_sampling
    assert options.stop == ("z",)
    assert options.max_new_tokens is None
    assert options.consumer is ConsumerMode.STREAMING
    assert prompt.chat.thinking is None
    assert prompt.tool_choice.mode == "auto"


def test_one_call_at_a_time_is_passed_on(server):
    assert server.chat(tools=TOOLS, parallel_tool_calls=False).status == 200
    assert server.engine.requests[0][0].tool_choice.parallel is False


def test_max_tokens_beyond_the_context_is_clamped_and_said(serve):
    server = serve(answer("a" * 200), max_context=64)
    for field in ("max_tokens", "max_completion_tokens"):
        reply = server.chat(**{field: 1000})
        assert reply.status == 200
        # the prompt "user: hi" takes 8 of 64
        assert reply.json["usage"]["completion_tokens"] == 56
        assert reply.json["choices"][0]["finish_reason"] == "length"
        assert reply.headers["x-ninfer-warning"] == "max_tokens was clamped from 1000 to 56"
        assert "clamped from 1000 to 56" in reply.json["warnings"][0]
    streamed = server.chat(stream=True, max_tokens=1000)
    assert "clamped" in streamed.headers["x-ninfer-warning"]


def test_system_and_developer_messages_anywhere(server):
    server.engine.script = answer("a")
    for roles in (["system", "system", "user"], ["user", "system", "user"], ["developer", "user"]):
        turns = [{"role": role, "content": [{"type": "text", "text": "a"}]} for role in roles]
        body = json.dumps({"messages": turns}).encode()
        assert server.request("/v1/chat/completions", body).status == 200


def test_models_are_listed_with_their_context(server):
    server.engine.script = answer("a")
    client = server.client()
    [model] = client.models.list().data
    assert (model.id, model.owned_by) == ("scripted", "ninfer")
    assert model.max_model_len == 4096
    assert client.models.retrieve("scripted").id == "scripted"
