"""Constraints of chat completions reach an engine that has a grammar backend, and no other."""

from __future__ import annotations

import pytest

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    ("wanted", "kind", "value"),
    [
        ({"regex": "a+"}, "regex", "a+"),
        ({"choice": ["a", "b"]}, "choice", ["a", "b"]),
        ({"json": {"type": "object"}}, "json_schema", {"type": "object"}),
        ({"json_object": True}, "json_object", None),
        ({"grammar": "root ::= 'a'"}, "grammar", "root ::= 'a'"),
    ],
)
def test_structured_outputs_reach_an_engine_that_serves_them(
    server, monkeypatch, wanted, kind, value
):
    monkeypatch.setattr("ninfer_core.testing.scripted_engine._refuse_constraints", lambda _: None)
    assert server.chat(structured_outputs=wanted).status == 200
    [(prompt, _)] = server.engine.requests
    form = prompt.response_format
    assert (form.kind, form.value) == (kind, value)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ],
)
def test_constraints_reach_an_engine_that_serves_them(server, monkeypatch, fields):
    assert server.chat(**fields).status == 400
    monkeypatch.setattr("ninfer_core.testing.scripted_engine._refuse_constraints", lambda _: None)
    assert server.chat(**fields).status == 200
