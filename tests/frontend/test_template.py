from __future__ import annotations

import time

import pytest

from ninfer_core.contract.errors import InvalidPrompt, InvalidRequest, RequestError, Unsupported
from ninfer_core.contract.requests import ChatOptions, PromptInput
from ninfer_core.errors import NinferError
from ninfer_qwen3_5.frontend.sandbox import RenderLimits
from ninfer_qwen3_5.frontend.template import ChatTemplate

USER = {"role": "user", "content": "hi"}


def render(source, limits=None, **variables):
    template = ChatTemplate({"default": source}, {"eos_token": "E"}, limits)
    return template.render([USER], [], variables, generate=True)


def test_an_exception_of_the_template_is_the_callers_error_in_its_words(frontend):
    with pytest.raises(InvalidPrompt, match="No user query"):
        frontend.render(PromptInput(messages=[{"role": "system", "content": "a"}]))


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.a.b }}",
        "{{ 1 + 'a' }}",
        "{{ messages[7].role }}",
        "{{ nothing() }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set ns = namespace(_x=1) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ messages.append(1) }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ 'a' * 10000000000 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 9 ** 999999999 }}",
        "{% import 'os' as os %}",
    ],
)
def test_a_failing_or_hostile_template_is_an_invalid_prompt(source):
    with pytest.raises(InvalidPrompt):
        render(source)


def test_a_template_that_does_not_parse_is_refused_at_start():
    with pytest.raises(NinferError, match="does not parse"):
        ChatTemplate({"default": "{% if %}"}, {})


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{% for i in range(90000) %}{% for j in range(90000) %}{{ messages[0].role }}{% endfor %}"
        "{% endfor %}",
    ],
)
def test_a_template_that_runs_on_is_stopped(source):
    limits = RenderLimits(seconds=0.2, characters=1 << 40)
    began = time.monotonic()
    with pytest.raises(InvalidPrompt, match="too long"):
        render(source, limits)
    assert time.monotonic() - began < 30


def test_a_template_that_writes_without_end_is_stopped():
    limits = RenderLimits(seconds=600, characters=10_000)
    with pytest.raises(InvalidPrompt, match="10000 characters"):
        render("{% for i in range(90000) %}{{ 'abc' }}{% endfor %}", limits)
    assert render("{{ 'a' * 10000 }}", limits) == "a" * 10_000


def test_the_limit_of_one_rendering_does_not_outlive_it():
    template = ChatTemplate({"default": "{{ messages[0].role }}"}, {}, RenderLimits(seconds=0.05))
    template.render([USER], [], {}, generate=True)
    time.sleep(0.06)
    assert template.render([USER], [], {}, generate=True) == "user"


def chat(frontend, **options):
    return frontend.render(PromptInput(messages=[USER], chat=ChatOptions(**options)))


def test_thinking_switches_the_generation_prompt(frontend):
    assert chat(frontend).endswith("assistant\n<think>\n")
    assert chat(frontend, thinking=True).endswith("assistant\n<think>\n")
    for options in (
        {"thinking": False},
        {"effort": "none"},
        {"template_kwargs": {"enable_thinking": False}},
        {"thinking": False, "effort": "none", "template_kwargs": {"enable_thinking": False}},
    ):
        assert chat(frontend, **options).endswith("<think>\n\n</think>\n\n")


def test_effort_reaches_the_template(frontend):
    assert "Think briefly." in chat(frontend, effort="low")
    assert "Think briefly." not in chat(frontend, effort="high")


@pytest.mark.parametrize(
    ("options", "error", "param"),
    [
        ({"thinking": True, "effort": "none"}, InvalidRequest, "chat.effort"),
        (
            {"thinking": True, "template_kwargs": {"enable_thinking": False}},
            InvalidRequest,
            "chat.thinking",
        ),
        (
            {"effort": "low", "template_kwargs": {"reasoning_effort": "high"}},
            InvalidRequest,
            "chat.effort",
        ),
        ({"template_kwargs": {"messages": []}}, InvalidRequest, "chat.template_kwargs.messages"),
        ({"template_kwargs": {"colour": 1}}, Unsupported, "chat.template_kwargs.colour"),
    ],
)
def test_options_that_contradict_or_do_nothing_are_refused(frontend, options, error, param):
    with pytest.raises(error) as caught:
        chat(frontend, **options)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("options", "param"),
    [({"thinking": False}, "chat.thinking"), ({"effort": "low"}, "chat.effort")],
)
def test_a_template_without_the_switch_refuses_it(opened, artifact, options, param):
    artifact.resources["chat_template.jinja"] = b"{{ messages[0].content }}"
    with pytest.raises(Unsupported) as caught:
        chat(opened(artifact), **options)
    assert caught.value.param == param


def test_a_checkpoint_without_a_template_serves_text_only(opened, artifact):
    del artifact.resources["chat_template.jinja"]
    frontend = opened(artifact)
    assert frontend.prepare(PromptInput(text="hi")).length > 0
    with pytest.raises(InvalidPrompt, match="--chat-template"):
        chat(frontend)


def test_only_an_assistant_message_without_calls_can_be_continued(frontend):
    calls = [{"function": {"name": "f", "arguments": {}}}]
    for last in (USER, {"role": "assistant", "content": "a", "tool_calls": calls}):
        with pytest.raises(InvalidPrompt) as caught:
            frontend.render(
                PromptInput(messages=[USER, last], chat=ChatOptions(continue_final=True))
            )
        assert caught.value.param == "chat.continue_final"


def test_a_template_that_drops_the_continued_text_is_an_error(opened, artifact):
    artifact.resources["chat_template.jinja"] = b"{{ messages[0].content }}"
    prompt = PromptInput(
        messages=[USER, {"role": "assistant", "content": "a"}],
        chat=ChatOptions(continue_final=True),
    )
    with pytest.raises(RequestError, match="cannot be continued"):
        opened(artifact).render(prompt)
