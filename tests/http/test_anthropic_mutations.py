"""Messages with one thing wrong in them are understood or refused, and never a fault."""

from __future__ import annotations

import copy
import random

import pytest
from pydantic import ValidationError

from ninfer_core.contract.errors import RequestError
from ninfer_core.testing.scripted_engine import ScriptedEngine
from ninfer_gateway_http.anthropic.schema import MessagesRequest
from ninfer_gateway_http.anthropic.translate import to_options, understand

MARK = {"type": "ephemeral", "ttl": "5m"}
BODY = {
    "model": "m",
    "max_tokens": 2000,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": MARK}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi", "citations": []}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "AAAA"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no"}],
                    "cache_control": MARK,
                },
                {"type": "text", "text": "again"},
            ],
        },
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "So?"},
    ],
    "tools": [
        {
            "name": "f",
            "description": "d",
            "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}},
            "input_examples": [{"x": 1}],
            "cache_control": MARK,
        }
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "low", "format": None},
    "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
    "metadata": {"user_id": "u"},
    "cache_control": MARK,
    "stop_sequences": ["x"],
    "temperature": 0.5,
    "top_k": 3,
}
JUNK = [
    *(None, True, -1, 0, 1.5, 1 << 80, float("nan"), "", "a", "text", "\ud800"),
    *([], [[]], [None], ["a"], {}, {"type": "text"}, {"type": []}, {"a": {"b": []}}),
]


def places(value, path=()):
    """Every place inside a document."""
    items = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def with_junk(path, junk, key=None):
    """The body with ``junk`` at ``path``, or there under a further ``key``."""
    body = copy.deepcopy(BODY)
    holder = body
    for step in path[:-1]:
        holder = holder[step]
    if key is None:
        holder[path[-1]] = junk
    elif isinstance(holder, dict):
        holder[key] = junk
    return body


@pytest.fixture(scope="module")
def model():
    return ScriptedEngine().load_summary()


def outcome(body, model):
    try:
        request = MessagesRequest.model_validate(body)
        asked = understand(request, model, strict=False)
        to_options(request, asked, model)
    except (ValidationError, RequestError) as error:
        return str(error)
    return None


def test_the_body_itself_is_understood(model):
    assert outcome(BODY, model) is None


def test_a_wrong_value_anywhere_is_a_refusal_or_an_answer(model):
    refused = 0
    for path in places(BODY):
        for junk in JUNK:
            refused += outcome(with_junk(path, junk), model) is not None
    assert refused > 500


def test_a_further_member_anywhere_is_a_refusal_or_an_answer(model):
    rng = random.Random(7)
    names = ["type", "citations", "caller", "cache_control", "ttl", "colour", "\ud800", "container"]
    for path in places(BODY):
        outcome(with_junk(path, rng.choice(JUNK), rng.choice(names)), model)
