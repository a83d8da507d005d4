"""Constrained requests with what proves their answers."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jsonschema
from _random_schemas import Generator
from _random_texts import derives, random_choices, random_grammar, random_regex, to_gbnf

from ninfer_core.contract.engine import EngineLike
from ninfer_core.contract.errors import InvalidSchema
from ninfer_core.contract.events import (
    Channel,
    Delta,
    Failed,
    Finished,
    FinishReason,
    GenerationResult,
)
from ninfer_core.contract.requests import (
    ChatOptions,
    ConsumerMode,
    GenerationOptions,
    PromptInput,
    ResponseFormat,
    ToolChoice,
)
from ninfer_core.contract.sampling import SamplingParams

TOKENS = 256
QUESTIONS = ("Reply with a person.", "What is the weather in Lima?", "465564867", "Write a poem.")


@dataclass(frozen=True)
class Case:
    """A request and the check of a natural end; ``what`` describes it in a report."""

    prompt: PromptInput
    options: GenerationOptions
    valid: Callable[[GenerationResult], bool]
    what: Any


def cases(kind: str, count: int, seed: int) -> Iterator[Case]:
    """``kind``: schema | regex | choice | grammar | tools."""
    rng = random.Random(f"{kind} {seed}")
    for _ in range(count):
        yield _MAKERS[kind](rng)


def _schema(rng: random.Random) -> Case:
    schema = Generator(rng).schema()
    validator = jsonschema.Draft202012Validator(schema)
    wanted = ResponseFormat(kind="json_schema", value=schema, strict=rng.random() < 0.5)
    return _case(rng, wanted, lambda r: validator.is_valid(json.loads(r.text)), schema)


def _regex(rng: random.Random) -> Case:
    pattern = random_regex(rng)
    wanted = ResponseFormat(kind="regex", value=pattern)
    return _case(rng, wanted, lambda r: re.fullmatch(pattern, r.text) is not None, pattern)


def _choice(rng: random.Random) -> Case:
    choices = random_choices(rng)
    wanted = ResponseFormat(kind="choice", value=choices)
    return _case(rng, wanted, lambda r: r.text in choices, choices)


def _grammar(rng: random.Random) -> Case:
    rules = random_grammar(rng)
    source = to_gbnf(rules)
    wanted = ResponseFormat(kind="grammar", value=source)
    return _case(rng, wanted, lambda r: derives(rules, r.text), source)


def _case(
    rng: random.Random, wanted: ResponseFormat, valid: Callable[[GenerationResult], bool], what: Any
) -> Case:
    return Case(replace(_prompt(rng), response_format=wanted), _options(rng), valid, what)


def _tools(rng: random.Random) -> Case:
    """Calls that must come, of tools that are strict or say nothing of it."""
    names = rng.sample(("get_weather", "add", "search", "send-mail"), rng.randint(1, 3))
    schemas = {name: _arguments(rng) for name in names}
    strict = rng.choice([{"strict": True}, {}])
    tools = tuple(
        {"type": "function", "function": {"name": name, "parameters": schemas[name], **strict}}
        for name in names
    )
    named = rng.choice(names) if rng.random() < 0.5 else None
    choice = ToolChoice(
        mode="required" if named is None else "named", name=named, parallel=rng.random() < 0.5
    )

    def valid(result: GenerationResult) -> bool:
        calls = result.tool_calls
        if not calls or result.text or (len(calls) > 1 and not choice.parallel):
            return False
        return all(
            call.name in ([named] if named else names)
            and jsonschema.Draft202012Validator(schemas[call.name]).is_valid(
                json.loads(call.arguments)
            )
            for call in calls
        )

    prompt = replace(_prompt(rng), tools=tools, tool_choice=choice)
    return Case(prompt, _options(rng), valid, {"tools": tools, "choice": named})


def _arguments(rng: random.Random) -> dict[str, Any]:
    generator = Generator(rng)
    names = rng.sample(("city", "days", "unit", "where"), rng.randint(0, 3))
    properties = {name: generator.value(1) for name in names}
    properties = {n: s for n, s in properties.items() if _one_form(s)}
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if rng.random() < 0.6],
        "additionalProperties": False,
    }


def _one_form(schema: dict[str, Any]) -> bool:
    """Whether values are all texts or all something else, as calls can carry them: by the types
    that the schema names."""
    if "enum" in schema:
        return len({isinstance(value, str) for value in schema["enum"]}) == 1
    return isinstance(schema.get("type"), str) or "const" in schema


def _prompt(rng: random.Random) -> PromptInput:
    thinking = rng.random() < 0.5
    question = {"role": "user", "content": rng.choice(QUESTIONS)}
    return PromptInput(messages=[question], chat=ChatOptions(thinking=thinking))


def _options(rng: random.Random) -> GenerationOptions:
    return GenerationOptions(
        sampling=SamplingParams(temperature=1.5, seed=rng.getrandbits(32)),
        max_new_tokens=TOKENS,
        thinking_budget=rng.choice([0, 8, 32]),
        consumer=rng.choice(list(ConsumerMode)),
    )


_MAKERS: dict[str, Callable[[random.Random], Case]] = {
    "schema": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "tools": _tools,
}


def run(engine: EngineLike, wanted: Iterable[Case], *, width: int = 8) -> dict[str, Any]:
    """Submit in waves of ``width`` and judge every answer.

    ``refused`` are cases that the engine refused by name, ``wrong`` natural ends that are not
    valid, or streams that do not join to their result.
    """
    outcomes: Counter[str] = Counter()
    wrong: list[Any] = []
    reasons: Counter[str] = Counter()
    wave: list[tuple[Case, Any]] = []
    drafts: Counter[str] = Counter()

    def settle() -> None:
        for case, handle in wave:
            events = list(handle)
            outcome = _judge(case, events)
            drafts.update(_drafts(events[-1]))
            outcomes[outcome if outcome in ("natural", "cut") else "wrong"] += 1
            if outcome not in ("natural", "cut"):
                wrong.append({"outcome": outcome, "case": repr(case.what)})
        wave.clear()

    for case in wanted:
        try:
            wave.append((case, engine.submit(case.prompt, case.options)))
        except InvalidSchema as error:
            outcomes["refused"] += 1
            reasons[error.message[:100]] += 1
        if len(wave) == width:
            settle()
    settle()
    report = {**outcomes, "reasons": dict(reasons.most_common(8)), "examples": wrong[:5]}
    return {**report, "drafts": dict(drafts)} if drafts else report


def _drafts(last: Any) -> dict[str, int]:
    """How many were made and taken, of a request that had any."""
    if not isinstance(last, Finished) or not last.result.timings.drafted:
        return {}
    timings = last.result.timings
    return {"drafted": sum(timings.drafted), "accepted": sum(timings.accepted)}


def _judge(case: Case, events: list[Any]) -> str:
    last = events[-1]
    if isinstance(last, Failed):
        return f"failed: {last.error}"
    assert isinstance(last, Finished)
    result = last.result
    if case.options.consumer is ConsumerMode.STREAMING:
        deltas = [e for e in events if isinstance(e, Delta) and e.channel is Channel.CONTENT]
        if "".join(delta.text for delta in deltas) != result.text:
            return "the stream is not the result"
    if result.finish_reason is FinishReason.OUTPUT_LIMIT:
        return "cut"
    if not result.finish_reason.natural:
        return f"ended by {result.finish_reason}"
    try:
        return "natural" if case.valid(result) else f"invalid: {result.text!r} {result.tool_calls}"
    except ValueError as error:
        return f"unreadable: {error}: {result.text!r} {result.tool_calls}"
