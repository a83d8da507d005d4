"""The Messages API as Anthropic's client sees it, streaming and not, over a scripted engine."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import anthropic
import pytest

from ninfer_core.contract.events import Channel, Delta, Finished, FinishReason, Timings
from ninfer_core.contract.requests import ConsumerMode
from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http.settings import ServerSettings

HELLO = [{"role": "user", "content": "hi"}]
WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {}}}
BASE = {"model": "claude-of-any-name", "max_tokens": 2000, "messages": HELLO}


def client_of(server, key="none"):
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=20)


def always(reply):
    return lambda prompt, options: reply


def post(server, path="/v1/messages", headers=None, **fields):
    return server.request(path, json.dumps(BASE | fields).encode(), headers)


def events_of(reply):
    """Name and payload of each event."""
    events = []
    for block in reply.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def test_an_answer_is_a_message(server):
    server.engine.script = always(Reply.of("four", timings=Timings(cached_tokens=3)))
    message = client_of(server).messages.create(**BASE)
    assert (message.type, message.role, message.model) == (
        "message",
        "assistant",
        "claude-of-any-name",
    )
    assert message.id.startswith("msg_")
    assert [(block.type, block.text) for block in message.content] == [("text", "four")]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    # "user: hi" and "four", one token for each byte
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (5, 3)
    assert (usage.cache_creation_input_tokens, usage.output_tokens) == (0, 4)
    assert message.timings["cache_n"] == 3


def test_a_stream_has_the_events_in_order_under_their_names(server, one_by_one):
    reply = Reply.of("ok", reasoning="hm", timings=Timings(cached_tokens=3))
    server.engine.script = always(reply.call("weather", '{"ci', 'ty": "Köln"}').call("time", "{}"))
    events = events_of(post(server, stream=True, tools=[WEATHER]))
    assert all(name == payload["type"] for name, payload in events)
    seen = [
        (payload.get("index"), payload.get("delta", {}).get("type", name))
        for name, payload in events
        if name not in ("message_start", "message_delta", "message_stop")
    ]
    assert seen == [
        (0, "content_block_start"),
        *[(0, "thinking_delta")] * 2,
        (0, "signature_delta"),
        (0, "content_block_stop"),
        (1, "content_block_start"),
        *[(1, "text_delta")] * 2,
        (1, "content_block_stop"),
        (2, "content_block_start"),
        *[(2, "input_json_delta")] * 2,
        (2, "content_block_stop"),
        (3, "content_block_start"),
        (3, "input_json_delta"),
        (3, "content_block_stop"),
    ]
    assert [name for name, _ in events[:1] + events[-2:]] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    opening = events[0][1]["message"]
    assert (opening["content"], opening["stop_reason"]) == ([], None)
    assert opening["usage"] == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 3,
        "output_tokens": 0,
    }
    closing = events[-2][1]
    assert closing["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    # hm, ok, weather{"city": "Köln"} (ö is two bytes), time{}
    assert closing["usage"]["output_tokens"] == 2 + 2 + 7 + 17 + 4 + 2
    assert closing["usage"]["output_tokens_details"] == {"thinking_tokens": 2}


def test_a_stream_says_the_same_as_a_whole_answer(server):
    reply = Reply.of("Grüße, 世界 🙂", reasoning="so … hm").call("weather", '{"city": ', '"Köln"}')
    server.engine.script = always(reply)
    client = client_of(server)
    whole = client.messages.create(**BASE, tools=[WEATHER])
    with client.messages.stream(**BASE, tools=[WEATHER]) as stream:
        streamed = stream.get_final_message()
    assert [b.model_dump(exclude={"parsed_output"}) for b in streamed.content] == [
        b.model_dump() for b in whole.content
    ]
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert whole.content[2].input == {"city": "Köln"}
    assert (streamed.stop_reason, streamed.usage) == (whole.stop_reason, whole.usage)


def test_the_asynchronous_client_gets_the_same(server):
    server.engine.script = always(Reply.of("four"))

    async def ask():
        async with anthropic.AsyncAnthropic(
            base_url=server.url, api_key="none", max_retries=0, timeout=20
        ) as client:
            whole = await client.messages.create(**BASE)
            async with client.messages.stream(**BASE) as stream:
                pieces = [text async for text in stream.text_stream]
            count = await client.messages.count_tokens(model="m", messages=HELLO)
            return whole.content[0].text, "".join(pieces), count.input_tokens

    assert asyncio.run(ask()) == ("four", "four", 8)


def test_the_beta_client_and_its_headers_are_served(server):
    server.engine.script = always(Reply.of("ok"))
    message = client_of(server).beta.messages.create(
        **BASE,
        betas=["interleaved-thinking-2025-05-14", "context-management-2025-06-27"],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )
    assert message.content[0].text == "ok"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("finish", "called", "expected"),
    [
        (FinishReason.STOP_TOKEN, False, "end_turn"),
        (FinishReason.OUTPUT_LIMIT, False, "max_tokens"),
        (FinishReason.CONTEXT_CAPACITY, False, "max_tokens"),
        (FinishReason.STOP_TOKEN, True, "tool_use"),
        (FinishReason.STOP_STRING, True, "tool_use"),
        (FinishReason.TOOL_CALLS, True, "tool_use"),
        (FinishReason.OUTPUT_LIMIT, True, "max_tokens"),
        (FinishReason.CONTEXT_CAPACITY, True, "max_tokens"),
    ],
)
def test_a_call_that_a_limit_cut_is_no_tool_use(server, finish, called, expected, stream):
    arguments = '{"city": "K"}' if finish.natural else '{"ci'
    reply = Reply.of("", finish=finish)
    server.engine.script = always(reply.call("weather", arguments) if called else reply)
    answered = post(server, stream=stream, tools=[WEATHER])
    stop = events_of(answered)[-2][1]["delta"] if stream else answered.json
    assert (stop["stop_reason"], stop["stop_sequence"]) == (expected, None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence_is_named(server, monkeypatch, stream):
    server.engine.script = always(Reply.of("one ", finish=FinishReason.STOP_STRING))
    submit = server.engine.submit

    def matching(prompt, options):
        handle = submit(prompt, options)
        take = handle.next_event

        def next_event(timeout=None):
            event = take(timeout)
            if isinstance(event, Finished):
                return Finished(replace(event.result, stop_match="two"))
            return event

        handle.next_event = next_event
        return handle

    monkeypatch.setattr(server.engine, "submit", matching)
    answered = post(server, stream=stream, stop_sequences=["two", "three"])
    stop = events_of(answered)[-2][1]["delta"] if stream else answered.json
    assert (stop["stop_reason"], stop["stop_sequence"]) == ("stop_sequence", "two")
    assert server.engine.requests[0][1].stop == ("two", "three")


def test_fields_reach_the_engine(server):
    server.engine.script = always(Reply.of("a"))
    reply = post(
        server,
        max_tokens=1100,
        temperature=0.25,
        top_p=0.5,
        top_k=7,
        thinking={"type": "enabled", "budget_tokens": 1024},
        metadata={"user_id": "u-1"},
        service_tier="auto",
    )
    assert reply.status == 200
    assert "x-ninfer-warning" not in reply.headers
    [(prompt, options)] = server.engine.requests
    sampling = options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.25, 0.5, 7)
    assert (options.max_new_tokens, options.thinking_budget) == (1100, 1024)
    assert options.consumer is ConsumerMode.AGGREGATE
    assert prompt.chat.thinking is True
    assert not prompt.chat.continue_final


def test_a_token_without_text_makes_no_event(server):
    deltas = [Delta(channel=Channel.CONTENT, text=text) for text in ("", "a", "", "b", "")]
    server.engine.script = always(Reply(deltas=tuple(deltas)))
    events = events_of(post(server, stream=True))
    texts = [e["delta"]["text"] for name, e in events if name == "content_block_delta"]
    assert texts in (["a", "b"], ["ab"])


def test_an_empty_answer_has_no_blocks(server):
    server.engine.script = always(Reply.of(""))
    assert post(server).json["content"] == []
    names = [name for name, _ in events_of(post(server, stream=True))]
    assert names == ["message_start", "message_delta", "message_stop"]


def test_silence_is_bridged_with_pings(serve):
    server = serve(
        lambda prompt, options: Reply.of("ab", interval=0.3),
        ServerSettings(drain=0.0, keep_alive=0.1),
    )
    events = events_of(post(server, stream=True))
    assert ("ping", {"type": "ping"}) in events
    with client_of(server).messages.stream(**BASE) as stream:
        assert "".join(stream.text_stream) == "ab"


def test_a_count_is_what_a_request_reports(server):
    client = client_of(server)
    prompt = {
        "system": "Be brief.",
        "messages": [*HELLO, {"role": "assistant", "content": "The answer:"}],
        "tools": [WEATHER],
    }
    count = client.messages.count_tokens(model="m", **prompt)
    message = client.messages.create(**BASE | prompt)
    # "system: Be brief.", "user: hi", "assistant: The answer:" and two line ends
    assert count.input_tokens == message.usage.input_tokens == 17 + 8 + 22 + 2


def test_a_count_takes_the_fields_of_an_answer(server):
    fields = {"stream": True, "temperature": 1, "metadata": {}, "stop_sequences": ["a"]}
    reply = post(server, "/v1/messages/count_tokens", **fields)
    assert (reply.status, reply.json) == (200, {"input_tokens": 8})
    assert "x-ninfer-warning" not in reply.headers
    assert server.engine.requests == []


def test_a_disconnect_cancels(serve, eventually):
    server = serve(lambda prompt, options: Reply.of("abc", interval=30))
    with client_of(server).messages.stream(**BASE) as stream:
        next(iter(stream))
    eventually(lambda: server.engine.handles[0].cancelled.is_set())


def test_what_a_coding_agent_sends_is_taken_as_it_is(server):
    server.engine.script = always(Reply.of("ok"))
    mark = {"cache_control": {"type": "ephemeral"}}
    billing = "x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli;"
    reply = post(
        server,
        "/v1/messages?beta=true",
        {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"},
        stream=True,
        max_tokens=3000,
        system=[
            {"type": "text", "text": billing},
            {"type": "text", "text": "You are an agent.", **mark},
            {"type": "text", "text": "Rules.", **mark},
        ],
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi", **mark}]}],
        tools=[{**WEATHER, "eager_input_streaming": True, "strict": False}],
        tool_choice={"type": "auto"},
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": "user_1_account_2_session_3"},
    )
    assert reply.status == 200
    assert "x-ninfer-warning" not in reply.headers
    assert events_of(reply)[-1][0] == "message_stop"
    [(prompt, _)] = server.engine.requests
    assert "billing" not in str(prompt)
    assert len(prompt.cache.markers) == 3
