"""Chunks of which only the text is new are the chunks that are written whole."""

from __future__ import annotations

import json

import pytest

from ninfer_core.contract.events import Channel, Delta, ToolDelta
from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http import sse
from ninfer_gateway_http.anthropic.replies import MessageWriter
from ninfer_gateway_http.anthropic.stream import MessageEvents, event

HOSTILE = ["a", '"', "\\", "\n\n", "ß", "😀", "\u2028", "data: x", "\x00", '","index":9']


@pytest.mark.parametrize("text", [*HOSTILE, ""])
def test_a_filled_stencil_is_the_event_of_that_text(text):
    def payload(word):
        return {"id": "ß", "one": word, "n": [1, None, {"two": word}]}

    assert sse.Stencil(sse.event(payload(sse.Stencil.HOLE))).filled(text) == sse.event(
        payload(text)
    )


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize(
    ("path", "body", "repeats"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 2}, 2),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, 1),
        ("/v1/completions", {"prompt": ["hi", "ho"], "max_tokens": 500}, 4),
    ],
)
def test_chunks_are_those_of_a_stream_that_counts_and_is_written_whole(server, path, body, repeats):
    reply = Reply.of("".join(HOSTILE), reasoning="".join(HOSTILE)).call("f", "{", "}")
    server.engine.script = lambda prompt, options: reply

    def chunks(**options):
        asked = {**body, "stream": True, "stream_options": options}
        events = server.request(path, json.dumps(asked).encode()).events
        assert events.pop() == "[DONE]"
        plain = [
            {name: one[name] for name in one if name not in ("id", "created", "usage", "timings")}
            for one in events
        ]
        return sorted(plain, key=lambda one: one["choices"][0]["index"])

    texts = chunks()
    assert texts == chunks(continuous_usage_stats=True)
    spoken = [choice.get("delta", choice) for one in texts for choice in one["choices"]]
    said = "".join((one.get("content") or one.get("text") or "") for one in spoken)
    assert said == "".join(HOSTILE) * repeats


@pytest.mark.parametrize("shown", [True, False])
def test_events_of_messages_are_the_same_with_and_without_stencils(shown):
    deltas = [
        Delta(channel=channel, text=text)
        for channel in (Channel.REASONING, Channel.CONTENT, Channel.REASONING)
        for text in [*HOSTILE, ""]
    ]
    call = Delta(channel=Channel.TOOL_CALL, tool=ToolDelta(index=0, id="c", name="f"))
    deltas += [call, *deltas[:3]]

    def written(*, quick):
        events = MessageEvents(MessageWriter("m", shown))
        sent = [
            (quick and events.text(delta)) or b"".join(map(event, events.delta(delta)))
            for delta in deltas
        ]
        return sent, events

    (fast, one), (slow, other) = written(quick=True), written(quick=False)
    assert fast == slow
    assert list(one._close()) == list(other._close())


@pytest.mark.usefixtures("one_by_one")
def test_events_of_responses_have_their_texts_numbers_and_fields(server):
    reply = Reply.of("".join(HOSTILE), reasoning="h").call("f", "{", "}")
    server.engine.script = lambda prompt, options: reply
    body = {"input": "hi", "stream": True}

    def deltas(**fields):
        text = server.request("/v1/responses", json.dumps({**body, **fields}).encode()).text
        events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]
        numbers = [one["sequence_number"] for one in events]
        assert numbers == list(range(len(events)))
        return [
            {name: value for name, value in one.items() if name not in ("item_id", "logprobs")}
            for one in events
            if one["type"].endswith(".delta")
        ]

    said = deltas()
    assert [one["delta"] for one in said] == ["h", *"".join(HOSTILE), "{", "}"]
    # With log-probabilities the events of the text are written whole.
    assert said == deltas(include=["message.output_text.logprobs"])
