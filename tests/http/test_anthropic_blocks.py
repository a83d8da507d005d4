"""What the blocks of a message become in the prompt, and which marks they carry."""

from __future__ import annotations

import anthropic
import pytest

from ninfer_core.contract.requests import CacheMarker
from ninfer_core.testing.scripted_reply import Reply

HELLO = {"role": "user", "content": "hi"}
MARK = {"cache_control": {"type": "ephemeral"}}
TOOL = {
    "name": "weather",
    "description": "Looks out of the window.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def text(words, **more):
    return {"type": "text", "text": words, **more}


def use(name, **more):
    return {"type": "tool_use", "id": name, "name": "weather", "input": {"city": "Köln"}, **more}


def result(name, content="rain", **more):
    return {"type": "tool_result", "tool_use_id": name, "content": content, **more}


@pytest.fixture
def ask(server):
    """Send messages; the answer is the prompt that the engine got, and the warning header."""

    def send(*messages, **fields):
        server.engine.script = lambda prompt, options: Reply.of("ok")
        server.engine.requests.clear()
        client = anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0, timeout=20)
        raw = client.messages.with_raw_response.create(
            model="m", max_tokens=9, messages=list(messages), **fields
        )
        return server.engine.requests[0][0], raw.headers.get("x-ninfer-warning", "")

    return send


def test_system_blocks_are_paragraphs_of_one_message(ask):
    prompt, _ = ask(HELLO, system="Be brief.")
    assert prompt.messages[0] == {"role": "system", "content": "Be brief."}
    prompt, _ = ask(HELLO, system=[text("Be brief."), text("Be kind.", **MARK)])
    assert prompt.messages[0] == {
        "role": "system",
        "content": [text("Be brief."), text("\n\n"), text("Be kind.")],
    }
    assert prompt.cache.markers == (CacheMarker(message=0, part=2),)


def test_a_billing_header_is_left_out(ask):
    header = text("x-anthropic-billing-header: cc_version=2.1; cch=00000;")
    prompt, warning = ask(HELLO, system=[header, text("Be brief.")])
    assert prompt.messages[0]["content"] == [text("Be brief.")]
    prompt, _ = ask(HELLO, system=[header])
    assert [message["role"] for message in prompt.messages] == ["user"]
    assert warning == ""


def test_a_system_message_stays_where_it_is(ask):
    prompt, _ = ask(HELLO, {"role": "system", "content": [text("Be brief.")]}, HELLO, system="A.")
    assert [message["role"] for message in prompt.messages] == ["system", "user", "system", "user"]
    assert prompt.messages[2]["content"] == [text("Be brief.")]


def test_a_round_of_tools(ask):
    prompt, warning = ask(
        HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I look.", "signature": "s"},
                text("A moment."),
                use("a", caller={"type": "direct"}),
                use("b"),
            ],
        },
        {
            "role": "user",
            "content": [result("b", [text("sun"), text("!")]), result("a"), text("So?")],
        },
        tools=[TOOL],
    )
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
    assert prompt.messages[1] == {
        "role": "assistant",
        "content": [text("A moment.")],
        "reasoning_content": "I look.",
        "tool_calls": [{"id": "a", **call}, {"id": "b", **call}],
    }
    assert prompt.messages[2:] == [
        {"role": "tool", "tool_call_id": "b", "content": [text("sun"), text("!")]},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "user", "content": [text("So?")]},
    ]
    assert prompt.tools == (
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "Looks out of the window.",
                "parameters": TOOL["input_schema"],
            },
        },
    )
    assert warning == ""


def test_the_clients_own_answer_goes_back_in(server):
    server.engine.script = lambda prompt, options: Reply.of("Look:", reasoning="hm").call(
        "weather", '{"city": "K"}'
    )
    client = anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0, timeout=20)
    fields = {"model": "m", "max_tokens": 99, "tools": [TOOL]}
    first = client.messages.create(messages=[HELLO], **fields)
    [call] = [block for block in first.content if block.type == "tool_use"]
    turns = [HELLO, first.to_param(), {"role": "user", "content": [result(call.id)]}]
    raw = client.messages.with_raw_response.create(messages=turns, **fields)
    assert "x-ninfer-warning" not in raw.headers
    sent = server.engine.requests[-1][0].messages
    assert sent[1]["reasoning_content"] == "hm"
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == {"city": "K"}
    assert sent[2]["tool_call_id"] == call.id


def test_a_failed_call_says_so(ask):
    for content, expected in [
        ("no city", "Error: no city"),
        ([text("no city")], [text("Error: "), text("no city")]),
    ]:
        prompt, _ = ask(
            HELLO,
            {"role": "assistant", "content": [use("a")]},
            {"role": "user", "content": [result("a", content, is_error=True)]},
            tools=[TOOL],
        )
        assert prompt.messages[2]["content"] == expected


def test_a_result_may_be_empty(ask):
    prompt, _ = ask(
        HELLO,
        {"role": "assistant", "content": [use("a")]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
        tools=[TOOL],
    )
    assert prompt.messages[2]["content"] == ""


def test_consecutive_assistant_messages_are_one(ask):
    prompt, _ = ask(
        HELLO,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "a", "signature": ""}]},
        {"role": "assistant", "content": [use("x")]},
        {"role": "assistant", "content": [use("y")]},
        {"role": "user", "content": [result("x")]},
        {"role": "user", "content": [result("y")]},
        tools=[TOOL],
    )
    assert [message["role"] for message in prompt.messages] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in prompt.messages[1]["tool_calls"]] == ["x", "y"]


def test_a_final_assistant_message_is_continued(ask):
    prompt, _ = ask(HELLO, {"role": "assistant", "content": "The answer is ("})
    assert prompt.chat.continue_final
    assert prompt.messages[-1] == {"role": "assistant", "content": [text("The answer is (")]}


def test_a_thought_that_cannot_be_read_is_said(ask):
    block = {"type": "redacted_thinking", "data": "AAAA"}
    prompt, warning = ask(HELLO, {"role": "assistant", "content": [block, text("4")]}, HELLO)
    assert "reasoning_content" not in prompt.messages[1]
    assert "redacted_thinking" in warning


def test_marks_are_boundaries_behind_their_blocks(ask):
    prompt, _ = ask(
        {"role": "user", "content": [text("a", **MARK), text("b")]},
        {"role": "assistant", "content": [text("c"), use("x", **MARK)]},
        {"role": "user", "content": [result("x", **MARK), text("d"), text("e", **MARK)]},
        tools=[TOOL],
    )
    assert prompt.cache.markers == (
        CacheMarker(message=0, part=0),
        CacheMarker(message=1),
        CacheMarker(message=2),
        CacheMarker(message=3, part=1),
    )


def test_the_requests_own_mark_is_the_end(ask):
    own = {"type": "ephemeral", "ttl": "1h"}
    prompt, _ = ask(HELLO, cache_control=own)
    assert prompt.cache.markers == (CacheMarker(message=0),)
    four = {"role": "user", "content": [text(word, **MARK) for word in "abcd"]}
    prompt, warning = ask(four, HELLO, cache_control=own)
    assert len(prompt.cache.markers) == 4
    assert warning == ""


def test_a_mark_on_tools_counts_and_needs_no_marker(ask):
    prompt, _ = ask(HELLO, tools=[{**TOOL, **MARK}])
    assert prompt.cache.markers == ()
    assert "cache_control" not in prompt.tools[0]["function"]


@pytest.mark.parametrize(
    ("choice", "mode", "parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "none"}, "none", True),
    ],
)
def test_the_choice_of_tools(ask, choice, mode, parallel):
    prompt, _ = ask(HELLO, tools=[TOOL], tool_choice=choice)
    assert (prompt.tool_choice.mode, prompt.tool_choice.parallel) == (mode, parallel)


def test_unknown_members_of_blocks_are_said_once(ask):
    blocks = [text("a", colour="red"), text("b", colour="blue", citations=None)]
    _, warning = ask({"role": "user", "content": blocks})
    assert warning == "unknown field 'colour' of text blocks was ignored"
