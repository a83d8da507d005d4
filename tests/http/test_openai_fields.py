"""What single fields of chat completions do, to the engine and to the reply."""

from __future__ import annotations

import json

import pytest

from ninfer_core.contract.events import PromptProgress, Timings
from ninfer_core.contract.requests import CacheMarker
from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http.settings import ServerSettings

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
MARK = {"type": "ephemeral"}


def answer(*args, **kwargs):
    return lambda prompt, options: Reply.of(*args, **kwargs)


def by_seed(prompt, options):
    """An answer that names its seed, or the text of the prompt without one."""
    seed = options.sampling.seed
    return Reply.of(f"seed {seed}", interval=0.002)


def post(server, **body):
    reply = server.request("/v1/chat/completions", json.dumps(body).encode())
    assert reply.status == 200, reply.text
    return reply


def asked(server):
    """Prompt and options of the one request that reached the engine."""
    [(prompt, options)] = server.engine.requests
    return prompt, options


def test_several_choices_count_their_seeds_up_and_add_their_usage(server):
    server.engine.script = by_seed
    whole = server.chat(n=3, seed=40).json
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert texts == ["seed 40", "seed 41", "seed 42"]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    # "user: hi" once, and "seed 4x" three times, one token for each byte
    usage = whole["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (
        8,
        21,
        29,
    )
    assert whole["timings"]["predicted_ms"] == 3 * 250
    # two and a half, seven letters less the first: 18 tokens in 0.75 s
    assert whole["timings"]["predicted_per_second"] == 24


def test_the_largest_seed_is_followed_by_the_first(server):
    server.engine.script = by_seed
    choices = server.chat(n=2, seed=2**64 - 1).json["choices"]
    assert [c["message"]["content"] for c in choices] == [f"seed {2**64 - 1}", "seed 0"]


def test_a_seed_may_be_negative_and_minus_one_is_none(server):
    server.engine.script = by_seed
    for seed, counted in ((-2, 2**64 - 2), (-(2**63), 2**63), (-1, None)):
        assert server.chat(seed=seed).json["choices"][0]["message"]["content"] == f"seed {counted}"
    for seed in (-(2**63) - 1, 2**64):
        refused = server.chat(seed=seed)
        assert (refused.status, refused.error["param"]) == (400, "seed")


def test_choices_without_a_seed_draw_their_own(server):
    server.engine.script = by_seed
    server.chat(n=2)
    assert [options.sampling.seed for _, options in server.engine.requests] == [None, None]


def test_choices_of_a_stream_come_interleaved(server):
    server.engine.script = by_seed
    events = server.chat(n=3, seed=7, stream=True, stream_options={"include_usage": True}).events
    *chunks, last, done = events
    assert done == "[DONE]"
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (8, 18)
    pieces = [chunk["choices"][0] for chunk in chunks]
    order = [piece["index"] for piece in pieces]
    assert order != sorted(order)
    for index in range(3):
        own = [piece for piece in pieces if piece["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(piece["delta"].get("content", "") for piece in own) == f"seed {7 + index}"
        assert [piece["finish_reason"] for piece in own if piece["finish_reason"]] == ["stop"]


def test_more_choices_than_the_engine_takes_at_once_wait_for_each_other(serve):
    server = serve(by_seed, capacity=2)
    whole = server.chat(n=9, seed=0).json
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert texts == [f"seed {index}" for index in range(9)]


def test_choices_share_the_place_that_others_leave(serve, eventually):
    def script(prompt, options):
        return Reply.of("x" * 600, interval=0.1) if options.max_new_tokens else Reply.of("y")

    server = serve(script, capacity=2)
    other = server.client().chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "hi"}], stream=True, max_tokens=600
    )
    eventually(lambda: server.engine.stats().running == 1)
    assert [c["message"]["content"] for c in server.chat(n=4).json["choices"]] == ["y"] * 4
    with server.client().chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "hi"}], stream=True, max_tokens=600
    ):
        eventually(lambda: server.engine.stats().running == 2)
        assert server.chat(n=4).status == 429
    other.close()


def test_a_choice_that_fails_ends_the_others(serve, eventually):
    from ninfer_core.contract.errors import NonFiniteOutput

    def script(prompt, options):
        if options.sampling.seed == 1:
            return Reply.of("", error=NonFiniteOutput("the logits held NaN"))
        return Reply.of("x" * 200, interval=0.1)

    server = serve(script)
    reply = server.chat(n=3, seed=0)
    assert (reply.status, reply.error["code"]) == (500, "nonfinite_output")
    events = server.chat(n=3, seed=0, stream=True).events
    assert events[-2]["error"]["code"] == "nonfinite_output"
    assert events.count("[DONE]") == 1
    eventually(lambda: server.engine.stats().running == 0)


def test_a_peer_that_leaves_cancels_all_choices(serve, eventually):
    server = serve(lambda prompt, options: Reply.of("x" * 600, interval=0.1))
    stream = server.client().chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "hi"}], n=4, stream=True
    )
    next(iter(stream))
    eventually(lambda: server.engine.stats().running == 4)
    stream.close()
    eventually(lambda: server.engine.stats().running == 0)


@pytest.mark.usefixtures("one_by_one")
def test_the_usage_so_far_stands_in_every_chunk_that_asks_for_it(server):
    server.engine.script = answer("abc")
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = server.chat(stream=True, stream_options=options).events[:-1]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == [0, 1, 2, 3, 3, 3]
    assert {event["usage"]["prompt_tokens"] for event in events} == {8}
    assert events[-1]["choices"] == []


@pytest.mark.usefixtures("one_by_one")
def test_timings_per_token_stand_beside_every_delta(server):
    server.engine.script = answer("abc", timings=Timings(cached_tokens=3))
    events = server.chat(stream=True, timings_per_token=True).events[1:-2]
    assert [event["timings"]["predicted_n"] for event in events] == [1, 2, 3]
    assert {event["timings"]["prompt_n"] for event in events} == {5}
    assert {event["timings"]["cache_n"] for event in events} == {3}


def test_progress_is_said_before_the_first_delta_to_who_asks(server):
    steps = tuple(PromptProgress(done=done, total=8, cached=2) for done in (5, 8))
    server.engine.script = answer("a", progress=steps, timings=Timings(cached_tokens=2))
    events = server.chat(stream=True, return_progress=True).events[:-1]
    said = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert [(one["processed"], one["total"], one["cache"]) for one in said] == [
        (2, 8, 2),
        (5, 8, 2),
        (8, 8, 2),
    ]
    first_text = next(i for i, e in enumerate(events) if e["choices"][0]["delta"].get("content"))
    assert max(i for i, e in enumerate(events) if "prompt_progress" in e) < first_text
    plain = server.chat(stream=True).events[:-1]
    assert not any("prompt_progress" in event for event in plain)


def test_token_ids_come_back_when_asked_for(server):
    server.engine.script = answer("é!")
    whole = server.chat(return_token_ids=True).json
    assert whole["prompt_token_ids"] == list(b"user: hi")
    assert whole["choices"][0]["token_ids"] == [0xC3, 0xA9, 0x21]
    events = server.chat(return_token_ids=True, stream=True).events[:-1]
    assert events[0]["prompt_token_ids"] == list(b"user: hi")
    ids = [i for event in events for i in event["choices"][0].get("token_ids", ())]
    assert ids == [0xC3, 0xA9, 0x21]
    assert "token_ids" not in server.chat().json["choices"][0]


@pytest.mark.parametrize(
    ("fields", "thinking", "effort", "budget"),
    [
        ({"enable_thinking": True}, True, None, None),
        ({"reasoning": {"enabled": False}}, False, None, None),
        ({"reasoning_effort": "low"}, None, "low", None),
        ({"reasoning": {"effort": "high"}}, None, "high", None),
        ({"reasoning": {"effort": "high"}, "reasoning_effort": "high"}, None, "high", None),
        ({"reasoning": {"max_tokens": 9}}, None, None, 9),
        ({"thinking_token_budget": 0}, None, None, 0),
        ({"reasoning_budget": -1}, None, None, None),
        ({"reasoning_budget": 7}, None, None, 7),
    ],
)
def test_spellings_of_thinking(server, fields, thinking, effort, budget):
    assert server.chat(**fields).status == 200
    prompt, options = asked(server)
    assert (prompt.chat.thinking, prompt.chat.effort) == (thinking, effort)
    assert options.thinking_budget == budget


def test_thinking_within_template_arguments(server):
    kwargs = {"enable_thinking": False, "colour": "red"}
    server.chat(chat_template_kwargs=kwargs, preserve_thinking=True)
    assert asked(server)[0].chat.template_kwargs == kwargs | {"preserve_thinking": True}


@pytest.mark.parametrize("fields", [{"include_reasoning": False}, {"reasoning": {"exclude": True}}])
def test_a_thought_can_be_kept_out_of_the_reply(server, fields):
    server.engine.script = answer("4", reasoning="2+2")
    whole = server.chat(**fields)
    assert whole.json["choices"][0]["message"]["content"] == "4"
    streamed = server.chat(stream=True, **fields)
    assert "2+2" not in whole.text
    assert not any("reasoning" in e["choices"][0]["delta"] for e in streamed.events[:-1])
    assert whole.json["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3


def test_cache_fields_are_hints_to_the_engine(server):
    server.chat(prompt_cache_key="k", cache_salt="mine", user="u", prompt_cache_retention="24h")
    cache = asked(server)[0].cache
    assert (cache.session_key, cache.salt, cache.markers) == ("k", "mine", ())


def test_a_session_of_its_own_goes_before_the_cache_key(server):
    server.chat(prompt_cache_key="k", session_id="s" * 300)
    key = asked(server)[0].cache.session_key
    assert key != "k"
    assert 0 < len(key) <= 256


def test_marks_on_messages_and_parts_become_cache_markers(server):
    parts = [{"type": "text", "text": "a", "cache_control": MARK}, {"type": "text", "text": "b"}]
    turns = [
        {"role": "system", "content": "s", "prompt_cache_breakpoint": {"mode": "explicit"}},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "x", "cache_control": None},
        {"role": "user", "content": [{"type": "text", "text": "c", "cache_control": MARK}]},
    ]
    post(server, messages=turns)
    prompt = asked(server)[0]
    assert prompt.cache.markers == (
        CacheMarker(message=0),
        CacheMarker(message=1, part=0),
        CacheMarker(message=3, part=0),
    )
    assert "prompt_cache_breakpoint" not in prompt.messages[0]


def test_more_than_four_marks_are_refused(server):
    part = {"type": "text", "text": "a", "cache_control": MARK}
    body = {"messages": [{"role": "user", "content": [part] * 5}]}
    reply = server.request("/v1/chat/completions", json.dumps(body).encode())
    assert (reply.status, reply.error["param"]) == (400, "messages")


def test_a_strict_server_refuses_what_others_warn_of(serve):
    server = serve(settings=ServerSettings(drain=0.0, strict=True), max_context=64)
    assert server.chat().status == 200
    for fields, param in [
        ({"colour": "red"}, "colour"),
        ({"stream": True, "stream_options": {"colour": 1}}, "stream_options.colour"),
        ({"max_tokens": 1000}, "max_tokens"),
        ({"max_tokens": 1000, "stream": True}, "max_tokens"),
    ]:
        reply = server.chat(**fields)
        assert (reply.status, reply.error["param"]) == (400, param)
    assert server.chat(max_tokens=56).status == 200


def test_half_a_character_in_a_field_is_a_400(server):
    name = b'{"messages": [{"role": "user", "content": "a"}], "logit_bias": {"\\ud800": 1}}'
    reply = server.request("/v1/chat/completions", name)
    assert (reply.status, reply.error["param"]) == (400, "logit_bias")
    model = b'{"messages": [{"role": "user", "content": "a"}], "model": "\\ud800"}'
    assert server.request("/v1/chat/completions", model).status == 404
    deep = b'{"messages": [{"role": "user", "content": "a"}], "logit_bias": {"\\ud800": "x"}}'
    assert server.request("/v1/chat/completions", deep).status == 400
