"""OpenAI's own client against `ninfer serve` of the demo model, blocking and asynchronous."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

HELLO = [{"role": "user", "content": "What is 17 + 25?"}]
EGGS = (
    "Mona has 81 eggs. Mona finds 4, gets 6 more and gives 31 away. How many eggs does Mona have?"
)
SUMS = "81 + 4 = 85\n85 + 6 = 91\n91 - 31 = 60"
THINK = {"chat_template_kwargs": {"enable_thinking": True}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "timer",
            "description": "Start a timer",
            "parameters": {
                "type": "object",
                "properties": {"duration": {"type": "integer"}},
                "required": ["duration"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "weather_report",
            "description": "Get the weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
]


@pytest.fixture
def client(demo):
    with demo.client() as client:
        yield client


def chat(client, messages=HELLO, **fields):
    return client.chat.completions.create(model="demo", messages=messages, temperature=0, **fields)


def gathered(chunks):
    """Content, thought, calls and finish of a stream's chunks."""
    text, thought, calls, finish = "", "", {}, None
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            thought += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
            for piece in choice.delta.tool_calls or ():
                call = calls.setdefault(piece.index, [piece.id, piece.function.name, ""])
                call[2] += piece.function.arguments or ""
    return text, thought, list(calls.values()), finish


def test_an_answer(client):
    done = chat(client)
    assert done.choices[0].message.content == "42"
    assert done.choices[0].finish_reason == "stop"
    assert done.model == "demo"
    assert done.usage.completion_tokens == 3
    assert done.timings["predicted_n"] == 3


def test_a_stream_and_an_answer_are_equal(client):
    messages = [{"role": "user", "content": "Say this: tomato, canyon, lantern"}]
    whole = chat(client, messages)
    chunks = list(chat(client, messages, stream=True, stream_options={"include_usage": True}))
    text, _, _, finish = gathered(chunks)
    assert (text, finish) == (whole.choices[0].message.content, "stop")
    assert text == "tomato, canyon, lantern"
    # What the prompt cost may differ: the second one is cached.
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_the_same_asynchronously(demo):
    async def ask():
        async with demo.async_client() as client:
            whole, stream = await asyncio.gather(
                chat(client),
                chat(client, [{"role": "user", "content": "Add 70 and 5."}], stream=True),
            )
            return whole, [chunk async for chunk in stream]

    whole, chunks = asyncio.run(ask())
    assert whole.choices[0].message.content == "42"
    assert gathered(chunks)[0] == "75"


def test_a_thought_is_apart_from_the_answer(client):
    messages = [{"role": "user", "content": EGGS}]
    [choice] = chat(client, messages, extra_body=THINK).choices
    assert choice.message.content == "60"
    assert choice.message.reasoning_content.strip() == SUMS
    text, thought, _, _ = gathered(chat(client, messages, stream=True, extra_body=THINK))
    assert (text, thought) == ("60", choice.message.reasoning_content)
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    plain = chat(client, messages, extra_body=off).choices[0].message
    assert plain.content
    assert not hasattr(plain, "reasoning_content")


@pytest.mark.parametrize("stream", [False, True])
def test_tools_round_trip(client, stream):
    messages = [{"role": "user", "content": "Start a timer of 2 minutes."}]
    if stream:
        _, _, [(call_id, name, arguments)], finish = gathered(
            chat(client, messages, tools=TOOLS, stream=True)
        )
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
            ],
        }
    else:
        [choice] = chat(client, messages, tools=TOOLS).choices
        [call] = choice.message.tool_calls
        finish, name, arguments = choice.finish_reason, call.function.name, call.function.arguments
        call_id, message = call.id, choice.message
    assert (finish, name, json.loads(arguments)) == ("tool_calls", "timer", {"duration": 2})
    result = {"role": "tool", "tool_call_id": call_id, "content": '{"status": "ok"}'}
    done = chat(client, [*messages, message, result], tools=TOOLS)
    assert done.choices[0].finish_reason == "stop"
    assert done.choices[0].message.content


def test_no_call_where_none_is_wanted(client):
    messages = [{"role": "user", "content": "Start a timer of 2 minutes."}]
    [choice] = chat(client, messages, tools=TOOLS, tool_choice="none").choices
    assert choice.message.tool_calls is None


def test_several_choices_of_one_seed_repeat(client):
    def texts():
        done = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Tell me something."}],
            n=3,
            seed=11,
            temperature=1.5,
            max_tokens=12,
        )
        return [choice.message.content for choice in done.choices]

    first = texts()
    assert texts() == first
    assert len(set(first)) > 1
    second = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Tell me something."}],
        seed=12,
        temperature=1.5,
        max_tokens=12,
    )
    assert second.choices[0].message.content == first[1]


def test_legacy_completions(demo, client):
    done = client.completions.create(model="demo", prompt="Hello", max_tokens=4, temperature=0)
    streamed = client.completions.create(
        model="demo", prompt="Hello", max_tokens=4, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == done.choices[0].text != ""

    async def ask():
        async with demo.async_client() as other:
            return await other.completions.create(
                model="demo", prompt=["Hello", "Hello"], max_tokens=4, temperature=0, logprobs=1
            )

    pair = asyncio.run(ask())
    assert [choice.text for choice in pair.choices] == [done.choices[0].text] * 2
    assert len(pair.choices[0].logprobs.tokens) == 4


def test_models(client):
    [model] = client.models.list().data
    assert (model.id, model.max_model_len) == ("demo", 1024)
    assert client.models.retrieve("demo").id == "demo"


def test_a_biased_token_is_all_that_comes(demo, client):
    [token] = demo.post("/tokenize", prompt="Hello").json["tokens"]
    done = client.chat.completions.create(
        model="demo", messages=HELLO, logit_bias={str(token): 100}, max_tokens=3, temperature=0
    )
    assert done.choices[0].message.content == "HelloHelloHello"


def test_the_least_and_the_most_of_an_answer(client):
    extra = {"ignore_eos": True, "min_tokens": 5}
    done = chat(client, max_tokens=7, extra_body=extra)
    assert (done.usage.completion_tokens, done.choices[0].finish_reason) == (7, "length")
    none = chat(client, max_tokens=0)
    assert (none.usage.completion_tokens, none.choices[0].message.content) == (0, "")
    assert none.choices[0].finish_reason == "length"


def test_stop_strings_and_stop_tokens(demo, client):
    messages = [{"role": "user", "content": "Say this: tomato, canyon, lantern"}]
    done = chat(client, messages, stop=["canyon"])
    assert done.choices[0].message.content == "tomato, "
    assert done.choices[0].stop_reason == "canyon"
    comma = demo.post("/tokenize", prompt="tomato,").json["tokens"][-1]
    done = chat(client, messages, extra_body={"stop_token_ids": [comma]})
    assert done.choices[0].message.content == "tomato"
    assert done.choices[0].stop_reason == comma


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"logit_bias": {"9999999": 5}}, "logit_bias"),
        ({"extra_body": {"guided_json": {}}}, "guided_json"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, None),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_requests_are_typed_errors(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "demo", "messages": HELLO, **fields})
    assert caught.value.status_code == 400
    if param is not None:
        assert caught.value.param == param
        assert param in caught.value.message
    assert chat(client).choices[0].message.content == "42"


def test_other_errors_are_typed(demo, client):
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    long = [{"role": "user", "content": "word " * 2000}]
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, long)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.body["max_context"] == 1024

    async def ask():
        async with demo.async_client() as other:
            await other.chat.completions.create(model="demo", messages=HELLO, top_p=7)

    with pytest.raises(openai.BadRequestError):
        asyncio.run(ask())


def test_the_clients_stream_helper(client):
    wanted = {"temperature": 0, "stream_options": {"include_usage": True}}
    with client.chat.completions.stream(model="demo", messages=HELLO, **wanted) as stream:
        done = stream.until_done().get_final_completion()
    assert done.choices[0].message.content == "42"
    assert done.usage.completion_tokens == 3


def test_the_request_id_is_known_to_the_client(client):
    assert chat(client)._request_id.startswith("req_")
    reply = chat(client, extra_headers={"x-request-id": "mine-1"})
    assert reply._request_id == "mine-1"
