"""Thinking: what is asked of the model's template, and what comes back."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import anthropic
import pytest

from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.requests import ConsumerMode
from ninfer_core.testing.scripted_engine import ScriptedEngine
from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http.anthropic.schema import MessagesRequest
from ninfer_gateway_http.anthropic.translate import understand

HELLO = [{"role": "user", "content": "hi"}]


BASE = {"model": "m", "max_tokens": 2000, "messages": HELLO}


def post(server, **fields):
    return server.request("/v1/messages", json.dumps(BASE | fields).encode())


def asked(*variables, strict=False, **fields):
    """What is understood for a model whose template reads ``variables``."""
    details = {"frontend": {"template_variables": variables}}
    model = replace(ScriptedEngine().load_summary(), details=details)
    return understand(
        MessagesRequest(messages=HELLO, max_tokens=2000, **fields), model, strict=strict
    )


def test_there_is_no_thought_unless_it_is_asked_for():
    assert asked("enable_thinking").prompt.chat.thinking is False
    assert asked("other").prompt.chat.thinking is None
    on = asked("enable_thinking", thinking={"type": "enabled", "budget_tokens": 1999})
    assert (on.prompt.chat.thinking, on.thinking.budget) == (True, 1999)


@pytest.mark.parametrize(
    ("effort", "word"),
    [
        ("low", "low"),
        ("medium", "medium"),
        ("high", None),
        ("xhigh", "xhigh"),
        ("max", "xhigh"),
        (None, None),
    ],
)
def test_effort_in_the_templates_words(effort, word):
    found = asked("reasoning_effort", output_config={"effort": effort})
    assert (found.prompt.chat.effort, found.warnings) == (word, ())


def test_an_effort_that_no_template_reads_is_said():
    found = asked("enable_thinking", output_config={"effort": "low"})
    assert found.prompt.chat.effort is None
    assert found.warnings == ("output_config.effort has no effect on this model",)
    assert asked("enable_thinking", output_config={"effort": "high"}).warnings == ()
    with pytest.raises(InvalidRequest, match=r"output_config\.effort"):
        asked("enable_thinking", output_config={"effort": "low"}, strict=True)


@pytest.mark.parametrize(
    ("thinking", "on"),
    [({"type": "disabled"}, False), ({"type": "adaptive"}, True), (None, None)],
)
def test_thinking_is_turned_on_and_off(server, thinking, on):
    assert post(server, thinking=thinking, stream=True).status == 200
    [(prompt, options)] = server.engine.requests
    # The scripted engine has no template that reads a switch, so nothing is asked of it unasked.
    assert prompt.chat.thinking is on
    assert options.thinking_budget is None
    assert options.sampling.temperature == 0.5
    assert options.consumer is ConsumerMode.STREAMING


def test_an_omitted_thought_comes_back_through_its_signature(server):
    server.engine.script = lambda prompt, options: Reply.of("4", reasoning="2+2")
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=20)
    fields = BASE | {"thinking": {"type": "adaptive", "display": "omitted"}}
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    assert whole.content[0].thinking == streamed.content[0].thinking == ""
    assert whole.content[0].signature == streamed.content[0].signature != ""
    turns = [*HELLO, whole.to_param(), *HELLO]
    server.engine.requests.clear()
    client.messages.create(**BASE | {"messages": turns})
    assert server.engine.requests[0][0].messages[1]["reasoning_content"] == "2+2"


def test_a_foreign_signature_is_no_thought(server):
    for signature in ("EqQBCkYIBxgC", "no base64!", base64.b64encode(b"other").decode()):
        block = {"type": "thinking", "thinking": "", "signature": signature}
        turns = [*HELLO, {"role": "assistant", "content": [block]}, *HELLO]
        server.engine.requests.clear()
        assert post(server, messages=turns).status == 200
        assert server.engine.requests[0][0].messages[1]["reasoning_content"] == ""
