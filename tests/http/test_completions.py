"""Text completions over a scripted engine: shapes, echoes, several prompts, streams."""

from __future__ import annotations

import json

import pytest

from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http.settings import ServerSettings


def answer(*args, **kwargs):
    return lambda prompt, options: Reply.of(*args, **kwargs)


def complete(server, prompt="ab", **fields):
    return server.request("/v1/completions", json.dumps({"prompt": prompt, **fields}).encode())


def echoing(prompt, options):
    """The prompt's length, and the seed where one is set."""
    size = len(prompt.text if prompt.text is not None else prompt.token_ids)
    seed = options.sampling.seed
    return Reply.of(f"{size}" if seed is None else f"{size}/{seed}", interval=0.002)


@pytest.mark.parametrize(
    ("prompt", "sizes"),
    [
        ("abc", [3]),
        (["abc", "d"], [3, 1]),
        ([97, 98], [2]),
        ([[97, 98, 99], [100]], [3, 1]),
    ],
)
def test_a_prompt_is_text_or_tokens_one_or_several(server, prompt, sizes):
    server.engine.script = echoing
    reply = complete(server, prompt).json
    assert reply["object"] == "text_completion"
    assert [choice["text"] for choice in reply["choices"]] == [str(size) for size in sizes]
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(sizes)))
    assert reply["usage"]["prompt_tokens"] == sum(sizes)
    assert reply["usage"]["completion_tokens"] == len(sizes)
    assert reply["timings"]["predicted_n"] == len(sizes)


def test_choices_come_in_the_order_of_the_prompts(server):
    server.engine.script = echoing
    reply = complete(server, ["abc", "d"], n=2, seed=5).json
    assert [choice["text"] for choice in reply["choices"]] == ["3/5", "3/6", "1/5", "1/6"]
    assert reply["usage"]["prompt_tokens"] == 3 + 1
    events = complete(server, ["abc", "d"], n=2, seed=5, stream=True).events
    texts = dict.fromkeys(range(4), "")
    for event in events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert list(texts.values()) == ["3/5", "3/6", "1/5", "1/6"]
    assert events[-1] == "[DONE]"


def test_the_default_limit_is_sixteen_tokens(server, serve):
    server.engine.script = answer("x" * 100)
    [choice] = complete(server).json["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("x" * 16, "length")
    other = serve(answer("x" * 100), ServerSettings(drain=0.0, default_max_tokens=5))
    assert complete(other).json["choices"][0]["text"] == "x" * 5


def test_a_limit_beyond_the_context_is_clamped_and_said(serve):
    server = serve(answer("a" * 200), max_context=64)
    reply = complete(server, "x" * 60, max_tokens=1000)
    assert reply.json["choices"][0]["text"] == "aaaa"
    assert reply.headers["x-ninfer-warning"] == "max_tokens was clamped from 1000 to 4"
    over = complete(server, "x" * 70)
    assert (over.status, over.error["code"]) == (400, "context_length_exceeded")
    assert over.error["param"] == "prompt"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("order", [(10, 60), (60, 10), (10, 60, 20)])
def test_a_limit_that_is_clamped_for_any_of_several_prompts_is_said(serve, order, stream):
    script, prompts = answer("a" * 200), ["x" * length for length in order]
    server = serve(script, max_context=64)
    reply = complete(server, prompts, n=2, max_tokens=30, stream=stream)
    said = "max_tokens 30 was clamped to 4, what the context has left"
    assert reply.headers["x-ninfer-warning"] == said
    texts = [""] * (2 * len(order))
    replies = reply.events[:-1] if stream else [reply.json]
    for choice in (choice for one in replies for choice in one["choices"]):
        texts[choice["index"]] += choice["text"]
    assert [len(text) for text in texts] == [min(30, 64 - n) for n in order for _ in range(2)]
    strict = serve(script, ServerSettings(drain=0.0, strict=True), max_context=64)
    refused = complete(strict, prompts, max_tokens=30, stream=stream)
    assert (refused.status, refused.error["param"]) == (400, "max_tokens")
    assert complete(strict, prompts, max_tokens=4, stream=stream).status == 200


def test_several_prompts_of_which_one_is_too_long_are_refused_before_any_is_read(serve):
    server = serve(answer("a"), max_context=64)
    refused = complete(server, ["x", "x" * 70], stream=True)
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
    assert server.engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_stands_before_the_completion(server, stream):
    server.engine.script = answer("cd")
    for prompt in ("ab", [97, 98]):
        reply = complete(server, prompt, echo=True, stream=stream)
        if stream:
            text = "".join(event["choices"][0]["text"] for event in reply.events[:-1])
        else:
            text = reply.json["choices"][0]["text"]
        assert text == "abcd"


@pytest.mark.parametrize("stream", [False, True])
def test_legacy_logprobs_name_tokens_and_their_places(server, stream):
    server.engine.script = answer("é!")
    reply = complete(server, logprobs=2, stream=stream)
    if stream:
        rows = [e["choices"][0]["logprobs"] for e in reply.events[:-1]]
        rows = [row for row in rows if row]
        found = {name: [v for row in rows for v in row[name]] for name in rows[0]}
    else:
        found = reply.json["choices"][0]["logprobs"]
    # é is C3 A9, ! is 21; token i has -(i % 4) / 4, its alternative the next byte value at -0.25
    assert found == {
        "tokens": ["bytes:\\xc3", "bytes:\\xa9", "!"],
        "token_logprobs": [0.0, -0.25, -0.5],
        "top_logprobs": [
            {"bytes:\\xc3": 0.0, "bytes:\\xc4": -0.25},
            {"bytes:\\xa9": -0.25, "bytes:\\xaa": -0.5},
            {"!": -0.5, '"': -0.75},
        ],
        "text_offset": [0, 0, 1],
    }


def test_no_logprobs_unless_asked_for(server):
    server.engine.script = answer("a")
    assert complete(server).json["choices"][0]["logprobs"] is None
    assert complete(server, logprobs=0).json["choices"][0]["logprobs"]["top_logprobs"] == [
        {"a": 0.0}
    ]


def test_token_ids_come_back_when_asked_for(server):
    server.engine.script = answer("cd")
    [choice] = complete(server, return_token_ids=True).json["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([97, 98], [99, 100])


def test_usage_comes_last_without_choices(server):
    server.engine.script = answer("cd")
    events = complete(server, stream=True, stream_options={"include_usage": True}).events
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["total_tokens"] == 4
    assert not any("usage" in event for event in events[:-2])
    assert [e["choices"][0]["finish_reason"] for e in events[:-2]][-1] == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True, "logprobs": 1, "stream": True}, "echo"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [256]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 600, "n": 2}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"logit_bias": {"9999999": 5}}, "logit_bias"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_wrong_field_is_named(server, fields, param):
    reply = complete(server, **fields)
    assert reply.status == 400, reply.text
    assert reply.error["param"].split("[")[0] == param
    assert server.engine.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"suffix": None, "best_of": 1, "user": "u", "add_special_tokens": True},
        {"n": 2, "best_of": 2, "response_format": {"type": "text"}, "suffix": ""},
    ],
)
def test_neutral_values_pass_in_silence(server, fields):
    reply = complete(server, **fields)
    assert reply.status == 200, reply.text
    assert "x-ninfer-warning" not in reply.headers


def test_an_error_in_a_stream_is_an_event_before_the_one_end(server):
    from ninfer_core.contract.errors import NonFiniteOutput

    server.engine.script = answer("ab", error=NonFiniteOutput("the logits held NaN"))
    events = complete(server, stream=True).events
    assert events[-2]["error"]["code"] == "nonfinite_output"
    assert events.count("[DONE]") == 1
