"""Chat requests with odd tools and forms, all of them such as a server must answer or refuse."""

from __future__ import annotations

import random
from typing import Any

Body = dict[str, Any]
NAMES = ["f", "get_weather", "a-b", "x" * 64, "", "ü", "<tool_call>", "a b", "f\n", "function"]
TEXTS = [
    "",
    "a",
    "x" * 300,
    "</tool_call>",
    "<|im_end|>",
    "<think>",
    "\ud7ff\U0001f600",
    "\x00",
    "ä ö",
]
SCHEMAS: list[Any] = [
    {"type": "object"},
    {},
    {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    {"type": "object", "properties": {"": {"type": "string"}, "ü": {"enum": [1, None, "x"]}}},
    {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, {"type": "array"}]}}},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
    {"type": "object", "properties": {"s": {"type": "string", "pattern": "^[ab]{2,4}$"}}},
    {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}, "$defs": {"t": {"const": 3}}},
    {"type": "object", "properties": {"l": {"type": "array", "minItems": 2, "maxItems": 4}}},
    {"type": "object", "minProperties": 1},
    True,
    {"$ref": "#"},
    {"$ref": "#/missing"},
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
    {"enum": []},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "number", "multipleOf": 0.1, "minimum": -1e300},
    {"type": 5},
]
_SOUND = 9
"""So many of them can be met."""
FORMS: list[Any] = [
    None,
    {"type": "text"},
    {"type": "json_object"},
    {"type": "json_schema"},
    {"type": "yaml"},
]
OUTPUTS: list[Any] = [
    {"regex": "[ab]{1,3}"},
    {"regex": "("},
    {"choice": ["yes", "no"]},
    {"choice": [""]},
    {"grammar": 'root ::= "a" | "b" root'},
    {"json_object": True},
    {"json": {"type": "object"}, "regex": "a"},
]
VOCABULARY = 512


def body(rng: random.Random) -> Body:
    """One request; half of the fields at most, each from a few values that meet its neighbours."""
    made: Body = {"messages": _messages(rng), "max_tokens": rng.choice([1, 1, 2, 3, 8, 24])}
    if rng.random() < 0.75:
        made["tools"] = [_tool(rng, number) for number in range(rng.choice([0, 1, 1, 2, 3]))]
        _maybe(rng, made, 0.6, "tool_choice", _choice(rng, made["tools"]))
        _maybe(rng, made, 0.3, "parallel_tool_calls", rng.random() < 0.5)
    if rng.random() < 0.25:
        made["response_format"] = _form(rng)
    _maybe(rng, made, 0.08, "structured_outputs", rng.choice(OUTPUTS))
    for name, share, values in _FIELDS:
        _maybe(rng, made, share, name, rng.choice(values))
    _maybe(rng, made, 0.15, "logit_bias", _biases(rng))
    if made.get("logprobs"):
        _maybe(rng, made, 0.5, "top_logprobs", rng.choice([0, 3, 20]))
    return made


_FIELDS: tuple[tuple[str, float, list[Any]], ...] = (
    ("n", 0.25, [1, 2, 4, 5]),
    ("stream", 0.5, [True, False]),
    ("temperature", 0.6, [0, 0.7, 2, 100]),
    ("seed", 0.4, [0, 7, (1 << 64) - 1]),
    ("top_k", 0.2, [-1, 1, 40, (1 << 31) - 1]),
    ("top_p", 0.2, [0, 1e-9, 0.5, 1]),
    ("min_p", 0.2, [0, 0.5, 1]),
    ("repetition_penalty", 0.15, [0.01, 1.3, 10]),
    ("presence_penalty", 0.15, [-2, 2]),
    ("stop", 0.25, ["a", ["\n", "{"], ["<"], " "]),
    ("stop_token_ids", 0.1, [[5], list(range(256)), list(range(300)), []]),
    ("min_tokens", 0.15, [0, 1, 3, 1 << 31, 1 << 64]),
    ("ignore_eos", 0.1, [True, False]),
    ("logprobs", 0.3, [True, False]),
    ("prompt_logprobs", 0.05, [0, 2]),
    ("enable_thinking", 0.4, [True, False]),
    ("thinking_budget", 0.2, [0, 1, 2, 1000]),
    ("return_token_ids", 0.1, [True]),
    ("return_progress", 0.1, [True]),
    ("continue_final_message", 0.05, [True]),
    ("cache_salt", 0.1, ["", "a"]),
    ("session_id", 0.1, ["s"]),
)


def _maybe(rng: random.Random, made: Body, share: float, name: str, value: Any) -> None:
    if rng.random() < share:
        made[name] = value


def _messages(rng: random.Random) -> list[Body]:
    talk: list[Body] = [{"role": "user", "content": rng.choice(["Sort: 9, 2, 5", *TEXTS])}]
    if rng.random() < 0.2:
        talk.insert(0, {"role": "system", "content": rng.choice(TEXTS)})
    if rng.random() < 0.2:
        called = {"name": rng.choice(NAMES), "arguments": rng.choice(["{}", "", "[1", '{"a":1}'])}
        call = {"id": "c", "type": "function", "function": called}
        talk.append({"role": "assistant", "content": rng.choice(TEXTS), "tool_calls": [call]})
        talk.append({"role": "tool", "tool_call_id": "c", "content": rng.choice(TEXTS)})
    if rng.random() < 0.1:
        talk.append({"role": "assistant", "content": rng.choice(["{", "[", *TEXTS])})
    return talk


def _tool(rng: random.Random, number: int) -> Body:
    """Tool ``number``, mostly under a name of its own."""
    name = f"{rng.choice(NAMES[:3])}_{number}" if rng.random() < 0.93 else rng.choice(NAMES)
    function: Body = {"name": name}
    _maybe(rng, function, 0.8, "parameters", _schema(rng))
    _maybe(rng, function, 0.4, "strict", rng.random() < 0.7)
    _maybe(rng, function, 0.3, "description", rng.choice(TEXTS))
    return {"type": "function", "function": function}


def _schema(rng: random.Random) -> Any:
    """Mostly one that can be met."""
    return rng.choice(SCHEMAS[:_SOUND] if rng.random() < 0.9 else SCHEMAS)


def _choice(rng: random.Random, tools: list[Body]) -> Any:
    names = [tool["function"]["name"] for tool in tools] or ["f"]
    named = {"type": "function", "function": {"name": rng.choice(names)}}
    if rng.random() < 0.05:
        return rng.choice([{}, "any", {"type": "function"}])
    return rng.choice(["auto", "none", "required", "required", named, named, None])


def _form(rng: random.Random) -> Any:
    form = rng.choice(FORMS)
    if form != {"type": "json_schema"}:
        return form
    wanted: Body = {"name": "x", "schema": _schema(rng)}
    _maybe(rng, wanted, 0.5, "strict", rng.random() < 0.5)
    return {**form, "json_schema": wanted}


def _biases(rng: random.Random) -> Body:
    """A few tokens, or the whole vocabulary, made likely or all but forbidden."""
    ids = range(VOCABULARY) if rng.random() < 0.4 else rng.sample(range(VOCABULARY), 3)
    return {str(token): rng.choice([-100, -100, 100, 0.5]) for token in ids}
