"""The wanted form as an instruction of the prompt: an option of the engine, off by default."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from ninfer_core import Engine, RemoteEngine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.frontend import RestoreKind
from ninfer_core.contract.requests import (
    CacheMarker,
    CacheRequest,
    GenerationOptions,
    PromptInput,
    ResponseFormat,
    ToolChoice,
)
from ninfer_core.testing.fake_remote import FakeStart, fake_plan
from ninfer_gateway_http.app import create_app
from ninfer_gateway_http.settings import ServerSettings

OBJECT = ResponseFormat(kind="json_object")
SENTENCE = "Answer with one JSON object and nothing else."
NOTE = {"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}
MESSAGES = [
    {
        "role": "system",
        "content": [{"type": "text", "text": "Be kind."}, {"type": "text", "text": "\nBe brief."}],
    },
    {"role": "user", "content": "First question?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Second one?"},
]


@pytest.fixture(scope="module")
def instructed():
    options = EngineOptions(devices=("cpu",), max_context=512, schema_instruction=True)
    with Engine.open("demo", options) as engine:
        yield engine


def rendered(engine, prompt):
    return engine.detokenize(engine.prepare(prompt).token_ids.tolist())


def marked(*markers):
    cache = CacheRequest(markers=tuple(CacheMarker(message=m, part=p) for m, p in markers))
    return PromptInput(messages=MESSAGES, response_format=OBJECT, cache=cache)


def test_it_is_off_unless_asked_for(demo_engine):
    plain = PromptInput(messages=MESSAGES)
    assert rendered(demo_engine, marked()) == rendered(demo_engine, plain)


def test_contents_stay_and_the_form_comes_first(instructed, demo_engine):
    text = rendered(instructed, marked())
    assert text.startswith(f"<|im_start|>system\n{SENTENCE}\n\nBe kind.\nBe brief.<|im_end|>")
    plain = rendered(demo_engine, marked())
    assert text.replace(f"{SENTENCE}\n\n", "", 1) == plain
    assert instructed.count_tokens(marked()) == instructed.prepare(marked()).length


@pytest.mark.parametrize(
    ("marker", "before"),
    [
        ((0, 0), "Be kind"),  # the point lies within a token
        ((0, 1), "Be brief.<|im_end|>\n"),
        ((0, None), "Be brief.<|im_end|>\n"),
        ((1, None), "First question?<|im_end|>\n"),
        ((3, None), "Second one?<|im_end|>\n"),
    ],
)
def test_a_marker_keeps_to_the_content_it_was_put_on(instructed, marker, before):
    prepared = instructed.prepare(marked(marker))
    explicit = [p for p in prepared.restore_points if p.kind is RestoreKind.EXPLICIT]
    assert len(explicit) == 1
    kept = instructed.detokenize(prepared.token_ids[: explicit[0].frontier].tolist())
    assert kept.endswith(before)
    assert kept.startswith(f"<|im_start|>system\n{SENTENCE}")


def test_calls_that_must_come_have_no_form_beside_them(instructed):
    for mode, wanted in (("required", ""), ("auto", f"Where you call no tool: {SENTENCE}")):
        prompt = PromptInput(
            messages=MESSAGES,
            tools=[NOTE],
            tool_choice=ToolChoice(mode=mode),
            response_format=OBJECT,
        )
        text = rendered(instructed, prompt)
        assert (SENTENCE in text) == bool(wanted)
        assert wanted in text


def test_a_request_reads_it_once_prepared_or_not(instructed):
    options = GenerationOptions(max_new_tokens=1)
    count = instructed.count_tokens(marked())
    for prompt in (marked(), instructed.prepare(marked())):
        assert instructed.submit(prompt, options).result().usage.prompt_tokens == count


def test_clients_over_http_get_it_too(instructed):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    with TestClient(create_app(instructed, ServerSettings())) as client:

        def read(**fields):
            reply = client.post("/v1/chat/completions", json={**body, **fields})
            assert reply.status_code == 200, reply.text
            return reply.json()["usage"]["prompt_tokens"]

        plain = read()
        assert read(response_format={"type": "text"}) == plain
        assert read(response_format={"type": "json_object"}) > plain
        assert read(structured_outputs={"choice": ["a", "b"]}) > plain


def test_an_engine_in_another_process_reads_it_here():
    options = EngineOptions(schema_instruction=True)
    with RemoteEngine(fake_plan(FakeStart()), options) as engine:
        prompt = PromptInput(text="abc", response_format=OBJECT)
        assert engine.prepare(prompt).request is prompt, "no messages, no instruction"
