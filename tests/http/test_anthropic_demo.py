"""The Messages API of `ninfer serve` with the demo model, through Anthropic's clients."""

from __future__ import annotations

import asyncio
import random

import anthropic
import pytest

from ninfer_demo_model.tasks import draw

SUM = {"role": "user", "content": "What is 17 + 25?"}
GREEDY = {"model": "claude-of-any-name", "max_tokens": 100, "extra_body": {"temperature": 0}}


@pytest.fixture
def client(demo):
    return anthropic.Anthropic(base_url=demo.url, api_key="none", max_retries=0, timeout=60)


def prompt_tokens(usage):
    parts = (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    return sum(parts)


def said(message):
    return [(b.type, b.model_dump(exclude={"parsed_output", "id"})) for b in message.content]


def with_tools(family, seed):
    """A case about tools, as this API writes it; the names of its roles are the demo model's."""
    case = draw(family, random.Random(seed), "heldout")
    functions = [tool["function"] for tool in case.tools]
    tools = [
        {
            "name": function["name"],
            "description": function["description"],
            "input_schema": function["parameters"],
        }
        for function in functions
    ]
    return case, tools


def test_an_answer_whole_and_streamed(client):
    whole = client.messages.create(messages=[SUM], **GREEDY)
    assert [(block.type, block.text) for block in whole.content] == [("text", "42")]
    assert (whole.stop_reason, whole.model) == ("end_turn", "claude-of-any-name")
    with client.messages.stream(messages=[SUM], **GREEDY) as stream:
        streamed = stream.get_final_message()
    assert said(streamed) == said(whole)
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_the_asynchronous_client(demo):
    async def ask():
        async with anthropic.AsyncAnthropic(
            base_url=demo.url, api_key="none", max_retries=0, timeout=60
        ) as client:
            whole = client.messages.create(messages=[SUM], **GREEDY)
            async with client.messages.stream(messages=[SUM], **GREEDY) as stream:
                return (await whole).content[0].text, await stream.get_final_text()

    assert asyncio.run(ask()) == ("42", "42")


def test_a_thought_comes_apart_from_the_answer(client):
    fields = GREEDY | {"max_tokens": 1100, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    whole = client.messages.create(messages=[SUM], **fields)
    with client.messages.stream(messages=[SUM], **fields) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert [block.type for block in message.content] == ["thinking", "text"]
        assert message.content[0].thinking
        assert message.content[0].signature
        assert message.content[1].text == "42"
        assert "think>" not in str(message.content)
        assert message.usage.output_tokens_details.thinking_tokens > 0


def test_a_thought_that_is_not_asked_for_is_not_there(client):
    off = GREEDY | {"thinking": {"type": "disabled"}}
    for fields in (GREEDY, off):
        message = client.messages.create(messages=[SUM], **fields)
        assert [block.type for block in message.content] == ["text"]


def test_a_round_of_tools(client):
    case, tools = with_tools("tools", 3)
    ask = {**GREEDY, "tools": tools, "tool_choice": {"type": "auto"}}
    messages = [dict(message) for message in case.messages]
    whole = client.messages.create(messages=messages, **ask)
    [expected] = case.reply.tool_calls
    [call] = [block for block in whole.content if block.type == "tool_use"]
    assert (call.name, call.input) == (expected.name, expected.arguments)
    assert whole.stop_reason == "tool_use"
    with client.messages.stream(messages=messages, **ask) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message()
    assert len(pieces) > 1
    assert said(streamed) == said(whole)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "7"}
    turns = [*messages, whole.to_param(), {"role": "user", "content": [result]}]
    answer = client.messages.create(messages=turns, **ask)
    assert answer.content[0].text == "The result is 7."
    assert answer.stop_reason == "end_turn"


def test_a_call_that_the_limit_cuts_is_never_a_tool_use(client):
    case, tools = with_tools("tools", 3)
    ask = {**GREEDY, "tools": tools, "messages": list(case.messages)}
    whole = client.messages.create(**ask)
    needed = whole.usage.output_tokens
    for limit in (1, needed // 2, needed - 1):
        cut = client.messages.create(**ask | {"max_tokens": limit})
        assert cut.stop_reason == "max_tokens"
        assert cut.usage.output_tokens == limit
        streamed = list(client.messages.create(**ask | {"max_tokens": limit}, stream=True))
        assert streamed[-2].delta.stop_reason == "max_tokens"


def test_a_stop_sequence_ends_and_is_named(client):
    ask = GREEDY | {"messages": [{"role": "user", "content": "Repeat: red blue green"}]}
    plain = client.messages.create(**ask).content[0].text
    assert "blue" in plain
    stopping = ask | {"stop_sequences": ["zzz", "ue"]}
    with client.messages.stream(**stopping) as stream:
        streamed = stream.get_final_message()
    for message in (client.messages.create(**stopping), streamed):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "ue")
        assert message.content[0].text == plain[: plain.index("ue")]


def test_the_beginning_of_an_answer_is_continued(client):
    turns = [SUM, {"role": "assistant", "content": "4"}]
    message = client.messages.create(messages=turns, **GREEDY)
    assert message.content[0].text == "2"


@pytest.mark.parametrize("family", ["tools", "tool_result", "recall_turns", "system_format"])
def test_a_count_is_what_a_request_reads(client, family):
    case, tools = with_tools(family, 5)
    turns, prompt = [], {"tools": tools}
    for message in case.messages:
        if message["role"] == "system":
            prompt["system"] = [{"type": "text", "text": message["content"]}]
        elif message["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": "c", "content": message["content"]}
            turns.append({"role": "user", "content": [result]})
        elif "tool_calls" in message:
            [call] = message["tool_calls"]
            function = call["function"]
            use = {"name": function["name"], "input": function["arguments"]}
            turns.append({"role": "assistant", "content": [{"type": "tool_use", "id": "c", **use}]})
        else:
            turns.append(dict(message))
    prompt["messages"] = turns
    for thinking in ({"type": "disabled"}, {"type": "adaptive"}):
        fields = prompt | {"thinking": thinking}
        count = client.messages.count_tokens(model="m", **fields).input_tokens
        brief = GREEDY | fields | {"max_tokens": 4}
        whole = client.messages.create(**brief)
        with client.messages.stream(**brief) as stream:
            streamed = stream.get_final_message()
        assert count == prompt_tokens(whole.usage) == prompt_tokens(streamed.usage)


def test_a_marked_prompt_is_found_again(client):
    words = " ".join(f"{word}." for word in ["red", "blue", "green", "one"] * 60)
    block = {"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}
    fields = {"system": [block], "messages": [SUM], **GREEDY}
    first = client.messages.create(**fields)
    count = client.messages.count_tokens(
        model="m", system=[block], messages=fields["messages"]
    ).input_tokens
    other = fields | {"messages": [{"role": "user", "content": "What is 20 + 3?"}]}
    second = client.messages.create(**other)
    assert first.usage.cache_read_input_tokens == 0
    assert 240 < second.usage.cache_read_input_tokens < count
    assert prompt_tokens(first.usage) == count


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "f"}])
def test_a_demanded_call_comes(client, choice):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}}
    tools = [{"name": "f", "input_schema": schema | {"required": ["n"]}}]
    alone = choice | {"disable_parallel_tool_use": True}
    done = client.messages.create(messages=[SUM], tools=tools, tool_choice=alone, **GREEDY)
    (block,) = done.content
    assert (block.type, block.name, done.stop_reason) == ("tool_use", "f", "tool_use")
    assert list(block.input) == ["n"]
    assert block.input["n"] <= 9


def test_an_unknown_name_is_refused(client):
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
        client.messages.create(
            messages=[SUM], tools=tools, tool_choice={"type": "tool", "name": "g"}, **GREEDY
        )


def test_a_prompt_that_is_too_long_is_said(client):
    turns = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 1024"):
        client.messages.create(messages=turns, **GREEDY)


def test_a_later_system_message_is_taken(client):
    turns = [SUM, {"role": "system", "content": "Be brief."}, SUM]
    raw = client.messages.with_raw_response.create(messages=turns, system="Be kind.", **GREEDY)
    assert raw.status_code == 200
