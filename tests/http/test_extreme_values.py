"""Numbers at and beyond the ends of what machines count in: answered or refused, and no more."""

from __future__ import annotations

import pytest

TALK = [{"role": "user", "content": "Sort: 9, 2, 5"}]
BODIES = {
    "/v1/chat/completions": {"messages": TALK},
    "/v1/completions": {"prompt": "one two"},
    "/v1/messages": {"model": "demo", "max_tokens": 3, "messages": TALK},
    "/v1/responses": {"input": "Sort: 9, 2, 5"},
}
CHAT, TEXT, MESSAGES, RESPONSES = BODIES
NEARLY_FULL = {"prompt": [5] * 1020}
"""Text completions do not end by themselves."""
COUNTS = {
    CHAT: [
        "max_tokens",
        "max_completion_tokens",
        "thinking_budget",
        "thinking_token_budget",
        "reasoning_budget",
        "top_k",
        "seed",
        "top_logprobs",
        "prompt_logprobs",
        "n",
    ],
    TEXT: ["max_tokens", "top_k", "seed", "logprobs", "prompt_logprobs", "n", "best_of"],
    MESSAGES: ["max_tokens", "top_k"],
    RESPONSES: ["max_output_tokens", "max_tool_calls", "top_logprobs"],
}
ENDS = [(1 << 31) - 1, 1 << 31, 1 << 63, (1 << 64) - 1, 1 << 70, -1]
FRACTIONS = [5e-324, 1.17e-38, 0.0, 1.0, 1e308, -5e-324]
LAWS = [
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
]


@pytest.fixture
def alive(demo):
    """The engine answers before and after."""
    yield demo
    reply = demo.post(CHAT, **BODIES[CHAT], max_tokens=1)
    assert reply.status == 200, reply.text


@pytest.mark.parametrize("asked", [1 << 31, (1 << 31) - 1024, 1 << 63, 1 << 70])
def test_more_least_tokens_than_the_context_holds_are_clamped_and_said(alive, asked):
    """An engine that counts in int32 never sees them."""
    reply = alive.post(TEXT, **NEARLY_FULL, min_tokens=asked, max_tokens=1 << 70)
    assert reply.status == 200
    assert f"min_tokens {asked} was clamped to 4" in reply.headers["x-ninfer-warning"]
    assert reply.json["choices"][0]["finish_reason"] == "length"
    assert reply.json["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("path", "field"), [(path, field) for path, fields in COUNTS.items() for field in fields]
)
def test_counts_at_the_ends_of_integers_are_answered_or_refused(alive, path, field):
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    lasts = path == TEXT and field == "max_tokens"
    right = (NEARLY_FULL if lasts else BODIES[path]) | {limit: 3, "stop": ["a", "e", " "]}
    if path in (MESSAGES, RESPONSES):
        right.pop("stop")
    for value in ENDS:
        reply = alive.post(path, **right | {field: value, "stream": False})
        assert reply.status in (200, 400), (value, reply.text)


@pytest.mark.parametrize("field", LAWS)
def test_sampling_at_the_ends_of_floats_is_answered_or_refused(alive, field):
    for value in FRACTIONS:
        reply = alive.post(CHAT, **BODIES[CHAT], max_tokens=3, seed=1, **{field: value})
        assert reply.status in (200, 400), (value, reply.text)
