"""Constraints on the demo model: a share of the acceptance run, and cases that others reported."""

from __future__ import annotations

import json
import re

import pytest

from ninfer_core.contract.errors import InvalidRequest, InvalidSchema, Unsupported
from ninfer_core.contract.events import FinishReason
from ninfer_core.contract.requests import (
    ChatOptions,
    GenerationOptions,
    PromptInput,
    ResponseFormat,
    ToolChoice,
)
from ninfer_core.contract.sampling import SamplingParams
from ninfer_grammar_xgrammar import attempts, flights, limits

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
WRITE = {
    "type": "function",
    "function": {
        "name": "write_file",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            "required": ["path", "content"],
            "additionalProperties": False,
        },
    },
}
NOTE = {"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch):
    """A busy machine refuses nothing here: how long a compile takes is judged elsewhere."""
    monkeypatch.setattr(flights, "COMPILE_SECONDS", 120.0)
    monkeypatch.setattr(attempts, "TRIAL_SECONDS", 120.0)
    monkeypatch.setattr(limits, "WAITING_SECONDS", 120.0)


def ask(text, **fields):
    return PromptInput(messages=[{"role": "user", "content": text}], **fields)


def options(count=200, temperature=1.5, seed=5, **rest):
    sampling = SamplingParams(temperature=temperature, seed=seed)
    return GenerationOptions(sampling=sampling, max_new_tokens=count, **rest)


def answer(engine, prompt, **rest):
    return engine.submit(prompt, options(**rest)).result()


@pytest.mark.parametrize(
    ("kind", "count"),
    [("schema", 60), ("regex", 20), ("choice", 20), ("grammar", 20), ("tools", 20)],
)
def test_every_natural_end_is_valid(demo_engine, accept_scripts, kind, count):
    from _constrained_cases import cases, run

    report = run(demo_engine, cases(kind, count, seed=1))
    assert report.get("wrong", 0) == 0, report["examples"]
    assert report.get("refused", 0) == 0, report["reasons"]
    assert report["natural"] >= 0.6 * count


def test_thinking_off_is_constrained_from_the_first_token(demo_engine):
    """A grammar that waits for the end of a thought that never was."""
    wanted = ResponseFormat(kind="json_schema", value=PERSON, name="p")
    prompt = ask(
        "Reply with a markdown poem about Ann, 30",
        response_format=wanted,
        chat=ChatOptions(thinking=False),
    )
    for seed in range(4):
        result = answer(demo_engine, prompt, seed=seed)
        assert result.reasoning == ""
        assert set(json.loads(result.text)) == {"name", "age"}
        assert result.finish_reason is FinishReason.STOP_TOKEN


def test_blanks_never_run_on(demo_engine):
    """Legal white space until the tokens are spent."""
    prompt = ask("465564867", response_format=ResponseFormat(kind="json_object"))
    for seed in range(3):
        text = answer(demo_engine, prompt, temperature=0.1, seed=seed, count=50).text
        assert not re.search(r"[ \t\n]{3}", re.sub(r'"(\\.|[^"\\])*"', '""', text)), text


@pytest.mark.parametrize("tool_choice", [ToolChoice(mode="required"), ToolChoice()])
def test_a_call_that_is_cut_is_no_call(demo_engine, tool_choice):
    """Half a call that is reported as a whole one."""
    prompt = ask("write a 60 line poem to /p.txt", tools=[WRITE], tool_choice=tool_choice)
    for count in (4, 9, 17, 30):
        result = answer(demo_engine, prompt, count=count, temperature=0.0)
        whole = result.finish_reason is FinishReason.TOOL_CALLS
        assert whole or result.finish_reason.natural or len(result.token_ids) == count
        if whole:
            assert all(set(json.loads(c.arguments)) >= {"path"} for c in result.tool_calls)


def test_a_named_call_comes_alone_and_a_demanded_one_comes(demo_engine):
    """A choice that is silently taken for another."""
    named = ToolChoice(mode="named", name="note", parallel=False)
    result = answer(demo_engine, ask("hello", tools=[WRITE, NOTE], tool_choice=named))
    assert [call.name for call in result.tool_calls] == ["note"]
    assert (result.text, result.finish_reason) == ("", FinishReason.TOOL_CALLS)
    demanded = ToolChoice(mode="required")
    result = answer(demo_engine, ask("hello", tools=[WRITE, NOTE], tool_choice=demanded))
    assert result.tool_calls
    with pytest.raises(InvalidRequest, match="not among the tools"):
        answer(demo_engine, ask("hi", tools=[NOTE], tool_choice=ToolChoice(mode="named", name="x")))


@pytest.mark.parametrize("thinking", [False, True])
def test_json_beside_tools_is_one_or_the_other(demo_engine, thinking):
    wanted = ResponseFormat(kind="json_schema", value=PERSON)
    prompt = ask(
        "Who is Ann?", tools=[NOTE], response_format=wanted, chat=ChatOptions(thinking=thinking)
    )
    for seed in range(4):
        result = answer(demo_engine, prompt, seed=seed, thinking_budget=16)
        if result.tool_calls:
            assert result.text == ""
        else:
            assert set(json.loads(result.text)) == {"name", "age"}


def test_a_begun_answer_is_gone_on_with(demo_engine):
    wanted = ResponseFormat(kind="json_schema", value=PERSON)
    begun = [
        {"role": "user", "content": "Ann"},
        {"role": "assistant", "content": '{"name":"An'},
    ]
    chat = ChatOptions(continue_final=True)
    result = answer(demo_engine, PromptInput(messages=begun, response_format=wanted, chat=chat))
    assert set(json.loads('{"name":"An' + result.text)) == {"name", "age"}
    begun[1] = {"role": "assistant", "content": "Ann is"}
    with pytest.raises(InvalidSchema, match="continued"):
        answer(demo_engine, PromptInput(messages=begun, response_format=wanted, chat=chat))


def test_a_constrained_answer_is_the_same_alone_and_beside_others(demo_engine):
    prompt = ask("Ann", response_format=ResponseFormat(kind="json_schema", value=PERSON))
    alone = answer(demo_engine, prompt)
    others = [demo_engine.submit(ask(f"count {n}"), options(40, seed=n)) for n in range(3)]
    beside = answer(demo_engine, prompt)
    assert beside.token_ids == alone.token_ids
    for other in others:
        other.result()


@pytest.mark.parametrize("field", ["stop", "stop_token_ids", "min_tokens", "ignore_eos"])
def test_what_ends_an_output_against_its_form_is_refused(demo_engine, field):
    value = {"stop": ("}",), "stop_token_ids": (5,), "min_tokens": 3, "ignore_eos": True}[field]
    prompt = ask("x", response_format=ResponseFormat(kind="json_object"))
    with pytest.raises(InvalidRequest) as caught:
        answer(demo_engine, prompt, **{field: value})
    assert caught.value.param == field
    offered = answer(demo_engine, ask("x", tools=[NOTE]), count=8, **{field: value})
    assert offered.token_ids


def test_expressions_beside_tools_are_refused(demo_engine):
    wanted = ResponseFormat(kind="regex", value="a+")
    with pytest.raises(Unsupported, match="tools"):
        answer(demo_engine, ask("x", tools=[NOTE], response_format=wanted))
    silent = ask("x", tools=[NOTE], response_format=wanted, tool_choice=ToolChoice(mode="none"))
    assert re.fullmatch("a+", answer(demo_engine, silent, count=60).text)


def test_a_refused_schema_leaves_others_running(demo_engine):
    """What would explode is refused before the request has a ticket."""
    stream = demo_engine.submit(ask("count to ten"), options(60))
    pattern = {"type": "string", "pattern": "[ab]*a[ab]{13}", "maxLength": 40}
    with pytest.raises(InvalidSchema):
        answer(
            demo_engine, ask("x", response_format=ResponseFormat(kind="json_schema", value=pattern))
        )
    assert stream.result().token_ids
