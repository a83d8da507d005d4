"""Constraints with drafts: a share of the acceptance run for every number of drafts, the answers of
plain decoding, and cases that others reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.events import Channel, Delta, FinishReason
from ninfer_core.contract.requests import (
    ChatOptions,
    ConsumerMode,
    GenerationOptions,
    PromptInput,
    ResponseFormat,
    ToolChoice,
)
from ninfer_core.contract.sampling import SamplingParams
from ninfer_grammar_xgrammar import attempts, flights, limits

MOST = 7
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SET = {
    "type": "function",
    "function": {"name": "set", "strict": True, "parameters": PERSON},
}
NOTE = {"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}
SHARES = {"schema": 9, "regex": 3, "choice": 3, "grammar": 3, "tools": 3}
"""Of every number of drafts: in all 63 schemas, and 21 of each other kind."""


@pytest.fixture(scope="module")
def drafting() -> Iterator[Callable[[int], Engine]]:
    """The demo model with a number of drafts, opened once."""
    opened: dict[int, Engine] = {}

    def engine(drafts: int) -> Engine:
        if drafts not in opened:
            options = EngineOptions(
                devices=("cpu",),
                plugins=("spec_mtp",),
                draft_tokens=drafts,
                max_concurrency=8,
                max_pending=64,
                max_context=1024,
                cache_policy="off",
                queue_timeout=None,
            )
            opened[drafts] = Engine.open("demo", options)
        return opened[drafts]

    yield engine
    for one in opened.values():
        one.close()


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch):
    """A busy machine refuses nothing here: how long a compile takes is judged elsewhere."""
    monkeypatch.setattr(flights, "COMPILE_SECONDS", 120.0)
    monkeypatch.setattr(attempts, "TRIAL_SECONDS", 120.0)
    monkeypatch.setattr(limits, "WAITING_SECONDS", 120.0)


def ask(text: str, **fields) -> PromptInput:
    return PromptInput(messages=[{"role": "user", "content": text}], **fields)


def options(temperature: float, seed: int, count: int = 120, **rest) -> GenerationOptions:
    sampling = SamplingParams(temperature=temperature, seed=seed)
    return GenerationOptions(sampling=sampling, max_new_tokens=count, **rest)


def drafted(results) -> int:
    return sum(sum(result.timings.drafted) for result in results)


@pytest.mark.parametrize("drafts", range(1, MOST + 1))
def test_every_natural_end_is_valid(drafting, accept_scripts, drafts):
    from _constrained_cases import cases, run

    made = 0
    for kind, count in SHARES.items():
        short = (
            replace(case, options=replace(case.options, max_new_tokens=96))
            for case in cases(kind, count, seed=100 + drafts)
        )
        report = run(drafting(drafts), short)
        made += report.get("drafts", {}).get("drafted", 0)
        assert report.get("wrong", 0) == 0, report["examples"]
        assert report.get("refused", 0) == 0, report["reasons"]
        assert report["natural"] >= 0.6 * count
    assert made > 0


FORMS = {
    "schema": {"response_format": ResponseFormat(kind="json_schema", value=PERSON)},
    "object": {"response_format": ResponseFormat(kind="json_object")},
    "regex": {"response_format": ResponseFormat(kind="regex", value="(ab|c){2,9}[0-9]+")},
    "choice": {"response_format": ResponseFormat(kind="choice", value=["abc", "abd", "b"])},
    "required": {"tools": (SET, NOTE), "tool_choice": ToolChoice(mode="required")},
    "named": {"tools": (SET, NOTE), "tool_choice": ToolChoice(mode="named", name="set")},
    "offered": {
        "tools": (SET, NOTE),
        "response_format": ResponseFormat(kind="json_schema", value=PERSON),
    },
}


def told(engine: Engine) -> list:
    """Greedy answers of all forms at once, thinking and not, streams and not."""
    handles = []
    for number, fields in enumerate(FORMS.values()):
        for thinking in (False, True):
            prompt = ask("Who is Ann, 30?", chat=ChatOptions(thinking=thinking), **fields)
            streams = (number + thinking) % 2
            asked = options(
                0.0,
                0,
                60,
                thinking_budget=12,
                consumer=ConsumerMode.STREAMING if streams else ConsumerMode.AGGREGATE,
            )
            handles.append(engine.submit(prompt, asked))
    events = [list(handle) for handle in handles]
    for deltas, handle in zip(events, handles, strict=True):
        said = [e for e in deltas if isinstance(e, Delta) and e.channel is Channel.CONTENT]
        assert not said or "".join(delta.text for delta in said) == handle.result().text
    return [handle.result() for handle in handles]


def test_greedy_answers_are_those_of_plain_decoding(drafting, demo_engine):
    def facts(results):
        calls = [[(call.name, call.arguments) for call in r.tool_calls] for r in results]
        rest = [(r.token_ids, r.text, r.reasoning, r.finish_reason) for r in results]
        return list(zip(calls, rest, strict=True))

    plain = told(demo_engine)
    assert {result.finish_reason for result in plain} >= {
        FinishReason.STOP_TOKEN,
        FinishReason.TOOL_CALLS,
    }
    for drafts in (1, 3, MOST):
        results = told(drafting(drafts))
        assert facts(results) == facts(plain), drafts
        assert drafted(results) > 0


@pytest.mark.parametrize(("count", "together"), [(4, 1), (24, 8)])
def test_thinking_and_drafts_begin_one_object(drafting, count, together):
    """JSON that began with two braces."""
    results = []
    for first in range(0, count, together):
        handles = [
            drafting(3).submit(
                ask(f"Tell of person {number}.", response_format=wanted),
                options(1.0, number, 60, thinking_budget=8),
            )
            for number in range(first, first + together)
            for wanted in [FORMS["schema" if number % 2 else "object"]["response_format"]]
        ]
        results += [handle.result() for handle in handles]
    assert drafted(results) > 0
    for number, result in enumerate(results):
        if result.finish_reason is FinishReason.OUTPUT_LIMIT:
            assert not number % 2, "what is under the schema ends within 60 tokens"
            assert result.text.startswith("{")
            assert not result.text.startswith("{{")
        else:
            assert isinstance(json.loads(result.text), dict), result.text


def test_drafts_behind_the_end_of_the_form_do_no_harm(drafting):
    """A matcher that was fed behind its end."""
    wanted = ResponseFormat(kind="json_schema", value={"type": "boolean"})
    handles = [
        drafting(MOST).submit(
            ask("Is it so?", response_format=wanted, chat=ChatOptions(thinking=False)),
            options(1.0, seed),
        )
        for seed in range(50)
    ]
    results = [handle.result() for handle in handles]
    assert {result.text for result in results} <= {"true", "false"}
    assert {result.finish_reason for result in results} == {FinishReason.STOP_TOKEN}
