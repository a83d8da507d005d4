"""Reported faults of thoughts, calls, stops and characters: what the model writes is given."""

from __future__ import annotations

import json

import pytest

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
            },
        },
    }
]
CALL = (
    "<tool_call>\n<function=search>\n<parameter=query>\nthe quick brown fox jumps over dogs\n"
    "</parameter>\n<parameter=limit>\n7\n</parameter>\n</function>\n</tool_call>"
)


def joined(events):
    """The message that the deltas of a stream add up to, with the finish reason."""
    message = {"content": "", "reasoning_content": "", "calls": {}, "finish": None}
    for event in events:
        if event == "[DONE]" or not event["choices"]:
            continue
        [choice] = event["choices"]
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        message["finish"] = choice["finish_reason"] or message["finish"]
        for piece in delta.get("tool_calls", ()):
            call = message["calls"].setdefault(piece["index"], {"name": None, "arguments": ""})
            call["name"] = piece["function"].get("name") or call["name"]
            call["arguments"] += piece["function"]["arguments"]
    return message


def both(server, **fields):
    """The message without and with a stream, in one form; they must be equal."""
    whole = server.chat(**fields).json["choices"][0]
    message = whole["message"]
    plain = {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "calls": {
            index: call["function"] for index, call in enumerate(message.get("tool_calls", ()))
        },
        "finish": whole["finish_reason"],
    }
    assert joined(server.chat(stream=True, **fields).events) == plain
    return plain


def test_a_thought_that_mentions_a_call_makes_none(says):
    server = says(
        "One writes `<tool_call>\n<function=search>` and closes it.\n</think>\n\nIn words only."
    )
    found = both(server, tools=TOOLS, enable_thinking=True)
    assert found["calls"] == {}
    assert found["finish"] == "stop"
    assert found["content"] == "In words only."
    assert found["reasoning_content"].startswith("One writes `<tool_call>")


def test_a_thought_and_an_answer_beside_unused_tools_stay_apart(says):
    server = says("No tool is needed.\n</think>\n\nFour.")
    found = both(server, tools=TOOLS, enable_thinking=True)
    assert found["reasoning_content"].strip() == "No tool is needed."
    assert found["content"] == "Four."
    assert "think>" not in found["content"] + found["reasoning_content"]


def test_without_thinking_the_answer_is_content(says):
    server = says("Hello.")
    for off in ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}):
        found = both(server, **off)
        assert (found["content"], found["reasoning_content"]) == ("Hello.", "")


@pytest.mark.parametrize("budget", [0, 1, 8, 64, 4096])
@pytest.mark.parametrize(
    "thought", ["ok\n</think>\n\n", "a b c d e f g h i j k l m n o p q r s t\n</think>\n\n"]
)
def test_a_closing_phrase_never_reaches_the_answer(says, thought, budget):
    from ninfer_qwen3_5.frontend.budget import GUIDANCE

    server = says(thought + "Four.")
    own = len(server.engine.frontend.tokenize(thought.partition("</think>")[0]))
    found = both(server, enable_thinking=True, thinking_token_budget=budget)
    assert GUIDANCE not in found["content"]
    assert "think>" not in found["content"]
    cut = 0 < budget <= own
    assert (GUIDANCE in found["reasoning_content"]) == cut
    if budget > own:
        assert found["content"] == "Four."


def test_arguments_of_a_call_come_in_many_pieces(says):
    server = says(CALL, interval=0.01)
    events = server.chat(tools=TOOLS, stream=True).events
    pieces = [
        piece
        for event in events[:-1]
        for choice in event["choices"]
        for piece in choice["delta"].get("tool_calls", ())
    ]
    first, *rest = pieces
    assert first["id"]
    assert (first["type"], first["index"], first["function"]["name"]) == ("function", 0, "search")
    filled = [piece for piece in rest if piece["function"]["arguments"]]
    assert len(filled) >= 8
    arguments = "".join(piece["function"]["arguments"] for piece in pieces)
    assert json.loads(arguments) == {"query": "the quick brown fox jumps over dogs", "limit": 7}


def test_arguments_arrive_while_the_call_is_written(says):
    server = says(CALL, interval=0.02)
    stream = server.client().chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": "hi"}],
        tools=TOOLS,
        stream=True,
    )
    for chunk in stream:
        calls = chunk.choices[0].delta.tool_calls or ()
        if any(call.function.arguments for call in calls):
            break
    assert not server.engine.handles[-1].ended
    stream.close()


@pytest.mark.parametrize("share", [0.02, 0.2, 0.4, 0.6, 0.8, 1.0])
def test_a_call_that_the_limit_cuts_is_length(says, share):
    server = says(CALL)
    written = len(server.engine.frontend.tokenize(CALL))
    limit = max(1, int(share * written))
    assert server.chat(tools=TOOLS, max_tokens=limit).json["choices"][0]["finish_reason"] == (
        "length"
    )
    streamed = joined(server.chat(tools=TOOLS, max_tokens=limit, stream=True).events)
    assert streamed["finish"] == "length"
    assert both(server, tools=TOOLS, max_tokens=written + 1)["finish"] == "tool_calls"


@pytest.mark.parametrize("stop", ["own fox", "fox", "quick brown fox jumps"])
def test_a_stop_string_over_several_tokens_leaks_nothing(says, stop):
    text = "The quick brown fox jumps over the lazy dog"
    found = both(says(text), stop=[stop])
    assert found["content"] == text.partition(stop)[0]
    assert found["finish"] == "stop"


def test_what_only_looked_like_a_stop_string_is_delivered(says):
    text = "The quick brown fog jumps. own fo"
    found = both(says(text), stop=["own fox"])
    assert found["content"] == text


def test_characters_over_several_tokens_stay_whole(says):
    text = "😀🎉👩‍👩‍👧🇩🇪 日本語のテキスト、東京、さくら हिन्दी ü"
    server = says(text)
    assert len(server.engine.frontend.tokenize(text)) > len(text)
    found = both(server)
    assert found["content"] == text
    for event in server.chat(stream=True).events[:-1]:
        assert "\ufffd" not in json.dumps(event, ensure_ascii=False)


def test_bytes_that_are_no_text_are_flushed_once(says):
    server = says("")
    smile = server.engine.frontend.tokenize("ab😀")
    server.engine.raw = smile[:-1]
    assert both(server)["content"] == "ab\ufffd"


def continued(server, **fields):
    """The text of a completion without and with a stream; they must be equal."""
    body = {"prompt": "a", "max_tokens": 500, **fields}
    [whole] = server.request("/v1/completions", json.dumps(body).encode()).json["choices"]
    streamed = server.request("/v1/completions", json.dumps({**body, "stream": True}).encode())
    choices = [event["choices"][0] for event in streamed.events[:-1]]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert choices[-1]["finish_reason"] == whole["finish_reason"]
    return whole


@pytest.mark.parametrize("stop", ["own fox", "fox", "quick brown fox jumps"])
def test_no_half_of_a_stop_string_in_a_completion(says, stop):
    text = "The quick brown fox jumps over the lazy dog"
    found = continued(says(text), stop=[stop])
    assert (found["text"], found["finish_reason"]) == (text.partition(stop)[0], "stop")


def test_what_only_looked_like_a_stop_string_is_part_of_a_completion(says):
    text = "The quick brown fog jumps. own fo"
    assert continued(says(text), stop=["own fox"])["text"] == text


def test_characters_over_several_tokens_stay_whole_in_a_completion(says):
    text = "🎉😀👩‍👩‍👧 日本語、漢字 ünïcødé 🇩🇪"
    assert continued(says(text))["text"] == text
