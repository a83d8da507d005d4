"""Responses of the demo model, by the official client, from a server process."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

SUM = "What is 17 + 25?"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
STRICT = WEATHER | {
    "strict": True,
    "parameters": WEATHER["parameters"] | {"additionalProperties": False},
}
THINK = {"chat_template_kwargs": {"enable_thinking": True}}


@pytest.fixture(scope="module")
def client(demo):
    return demo.client()


def create(client, **fields):
    return client.responses.create(**{"model": "demo", "temperature": 0} | fields)


def test_whole_streamed_and_stored_say_the_same(client):
    whole = create(client, input=SUM, extra_body=THINK)
    thought, message = whole.output
    assert thought.content[0].text
    assert (message.content[0].text, whole.status) == ("42", "completed")
    assert 0 < whole.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens
    with client.responses.stream(
        model="demo", temperature=0, input=SUM, extra_body=THINK
    ) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds.count("response.completed") == 1
    assert "response.reasoning_text.delta" in kinds
    assert last.output_text == whole.output_text
    assert last.output[0].content[0].text == thought.content[0].text
    assert last.usage.output_tokens == whole.usage.output_tokens
    assert client.responses.retrieve(last.id).output_text == "42"
    counted = client.responses.input_tokens.count(model="demo", input=SUM, extra_body=THINK)
    assert counted.input_tokens == whole.usage.input_tokens


def test_thinking_off_puts_all_into_the_message(client):
    done = create(client, input=SUM, reasoning={"effort": "none"})
    assert [item.type for item in done.output] == ["message"]
    assert done.output_text == "42"
    assert done.usage.output_tokens_details.reasoning_tokens == 0


def test_a_tool_round_trip_over_stored_responses(client):
    first = create(client, input="What is the weather in Paris?", tools=[WEATHER])
    [call] = first.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments) == {"city": "Paris"}
    result = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": json.dumps({"city": "Paris", "weather": "rain"}),
    }
    done = create(client, input=[result], previous_response_id=first.id, tools=[WEATHER])
    assert done.status == "completed"
    assert done.usage.input_tokens > first.usage.total_tokens
    items = client.responses.input_items.list(done.id, order="asc")
    assert [item.type for item in items] == ["message", "function_call", "function_call_output"]


def test_a_call_streams_its_arguments_and_one_that_is_cut_is_incomplete(client):
    asked = {"input": "What is the weather in Paris?", "tools": [WEATHER]}
    events = list(create(client, stream=True, **asked))
    pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert len(pieces) > 1
    assert json.loads("".join(pieces)) == {"city": "Paris"}
    needed = events[-1].response.usage.output_tokens
    cut = create(client, max_output_tokens=needed - 6, **asked)
    assert cut.status == "incomplete"
    assert [item.status for item in cut.output] == ["incomplete"]
    assert create(client, input=SUM, previous_response_id=cut.id).output_text


def test_turns_start_from_what_the_conversation_left(client):
    text = "Remember: " + " ".join(f"w{i}" for i in range(60)) + ". " + SUM
    first = create(client, input=text)
    for store in (False, True, False):
        turn = create(client, input="And 3 + 4?", previous_response_id=first.id, store=store)
        cached = turn.usage.input_tokens_details.cached_tokens
        assert first.usage.input_tokens / 2 < cached < turn.usage.input_tokens


def test_an_effort_that_the_template_does_not_read_is_refused_by_its_name(client):
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, input=SUM, reasoning={"effort": "high"})
    assert refused.value.param == "reasoning.effort"


def test_forms_and_demanded_calls_are_kept(client):
    form = {"format": {"type": "json_object"}}
    done = create(client, input=SUM, text=form, temperature=1.5, max_output_tokens=64)
    assert done.status == "incomplete" or isinstance(json.loads(done.output_text), dict)
    for fields in (
        {"tools": [WEATHER], "tool_choice": "required"},
        {"tools": [STRICT], "tool_choice": {"type": "function", "name": "get_weather"}},
    ):
        (call,) = create(client, input=SUM, parallel_tool_calls=False, **fields).output
        assert (call.type, call.name) == ("function_call", "get_weather")
        assert list(json.loads(call.arguments)) == ["city"]


def test_a_strict_tool_that_cannot_be_enforced_is_refused_by_its_place(client):
    dates = {"city": {"type": "string", "format": "date"}}
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, input=SUM, tools=[STRICT | {"parameters": {"properties": dates}}])
    assert refused.value.param == "tools[0].parameters"
    assert "/properties/city/format" in refused.value.message


def test_the_asynchronous_client(demo):
    async def talk():
        async with demo.async_client() as client:
            fields = {"model": "demo", "temperature": 0, "input": SUM}
            many = await asyncio.gather(*(client.responses.create(**fields) for _ in range(3)))
            assert [done.output_text for done in many] == ["42"] * 3
            async with client.responses.stream(**fields) as stream:
                texts = [e.delta async for e in stream if e.type == "response.output_text.delta"]
                last = await stream.get_final_response()
            assert "".join(texts) == last.output_text == "42"
            assert (await client.responses.retrieve(last.id)).output_text == "42"
            items = await client.responses.input_items.list(last.id)
            assert items.data[0].content[0].text == SUM
            await client.responses.delete(last.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(last.id)
            with pytest.raises(openai.BadRequestError):
                await client.responses.create(**fields | {"truncation": "auto"})

    asyncio.run(talk())
