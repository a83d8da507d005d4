"""Stop strings while rounds of several tokens are verified: nothing leaks, little is held back."""

from __future__ import annotations

import json
from random import Random

import pytest

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.events import Delta
from ninfer_core.contract.requests import ChatOptions, GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_demo_model.source import resolve
from ninfer_demo_model.tasks import draw
from ninfer_gateway_http.settings import ServerSettings
from tests.http.conftest import Running

CASE = draw("sort", Random("x"), "heldout")
ANSWER = "13, 24, 48, 50, 63, 80, 96"
"""Of the numbers that the case asks to sort."""

STOPS = [ANSWER[first : first + 7] for first in (1, 6, 11, 19)]
"""Each begins and ends within another round's tokens or another token."""

BACKENDS = {"mtp": ("spec_mtp", 3), "dflash": ("spec_dflash", 7), "dflash2": ("spec_dflash", 7)}
GREEDY = SamplingParams(temperature=0.0)
CHAT = PromptInput(messages=CASE.messages, chat=ChatOptions(thinking=CASE.thinking))


@pytest.fixture(scope="module", params=BACKENDS)
def engine(request):
    plugin, drafts = BACKENDS[request.param]
    options = EngineOptions(
        devices=("cpu",),
        plugins=(plugin,),
        draft=request.param,
        draft_tokens=drafts,
        max_context=128,
        max_concurrency=1,
    )
    with Engine.open(resolve(), options) as engine:
        yield engine


@pytest.fixture(scope="module")
def server(engine):
    running = Running(engine, ServerSettings(drain=0.0))
    running.start()
    yield running
    running.stop()


def test_the_case_is_what_its_stops_are_made_for(engine):
    numbers = sorted(int(n) for n in CASE.messages[-1]["content"].split(":")[1].split(","))
    assert ", ".join(map(str, numbers)) == ANSWER
    made = engine.submit(CHAT, GenerationOptions(sampling=GREEDY, max_new_tokens=60)).result(60.0)
    assert made.text == ANSWER
    assert made.timings.rounds < len(made.token_ids) / 2
    assert sum(made.timings.accepted) > len(made.token_ids) / 2


def asked(server, path, **body):
    """Text and end of an answer, alike without and with a stream."""
    body = {"model": "demo", "temperature": 0, "max_tokens": 60, **body}
    sent = [json.dumps({**body, "stream": stream}).encode() for stream in (False, True)]
    whole, streamed = (server.request(path, one) for one in sent)
    [choice] = whole.json["choices"]
    events = [e["choices"][0] for e in streamed.events if e != "[DONE]" and e["choices"]]
    if "message" in choice:
        text = choice["message"]["content"]
        pieces = [event["delta"].get("content") or "" for event in events]
    else:
        text, pieces = choice["text"], [event["text"] for event in events]
    assert "".join(pieces) == text
    assert [e["finish_reason"] for e in events if e["finish_reason"]] == [choice["finish_reason"]]
    return text, choice["finish_reason"]


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_string_over_several_rounds_leaks_nothing(engine, server, stop):
    """Of chat and of completions."""
    expected = ANSWER.partition(stop)[0], "stop"
    messages = [dict(message) for message in CASE.messages]
    chat = {"messages": messages, "chat_template_kwargs": {"enable_thinking": CASE.thinking}}
    assert asked(server, "/v1/chat/completions", stop=[stop], **chat) == expected
    prompt = engine.prepare(CHAT).token_ids.tolist()
    assert asked(server, "/v1/completions", stop=[stop], prompt=prompt) == expected


@pytest.mark.parametrize("stop", [*STOPS, "48, 50, 63, 81", ", 99"])
def test_only_what_may_become_the_stop_string_is_held_back(engine, stop):
    """After every round the text of its tokens is shown, but for a beginning of the stop string."""
    options = GenerationOptions(sampling=GREEDY, max_new_tokens=60, stop=(stop,))
    deltas = [d for d in engine.submit(CHAT, options) if isinstance(d, Delta)]
    ids, shown, expected = [], "", ANSWER.partition(stop)[0]
    for delta in deltas:
        ids += delta.token_ids
        shown += delta.text
        held = engine.detokenize(ids).removesuffix("<|im_end|>")[len(shown) :]
        assert expected.startswith(shown)
        assert stop.startswith(held) or shown == expected
    assert shown == expected
    assert max(len(delta.token_ids) for delta in deltas) > 2
