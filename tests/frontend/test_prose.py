"""One token of plain text is read without a copy of the state; the outcome is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ninfer_core.contract.frontend import OutputSpan
from ninfer_qwen3_5.frontend.session import Session

OUTPUTS = {
    "content": "The quick brown fox.\n\nA line\n\n\nand 日本語 😀🎉 more\n",
    "thought": "Let me think\n\nabout it.\n\n</think>\n\n  The answer\nis 42.\n",
    "call": "I look < it up.\n\n<tool_call>\n<function=search>\n<parameter=query>\nfox\n"
    "</parameter>\n</function>\n</tool_call>\nThen text\n",
    "bare call": "So:\n<function=search>\n<parameter=query>\nfox\n</parameter>\n</function>\nand",
    "half character": b"ab\xf0\x9f\x98",
}


def nameless(deltas):
    """Without the ids of calls, which are drawn afresh."""
    return [d if d.tool is None else replace(d, tool=replace(d.tool, id=None)) for d in deltas]


def facts(preview):
    return (
        *(preview.accepted, preview.finish, preview.stop_match),
        *(preview.boundaries, preview.forced),
    )


def said(session):
    summary = session.summary()
    return replace(summary, tool_calls=tuple((c.name, c.arguments) for c in summary.tool_calls))


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("option", [{}, {"stop": ("lazy",)}, {"thinking_budget": 6}], ids=str)
@pytest.mark.parametrize("name", OUTPUTS)
def test_the_short_way_reads_the_same(
    frontend, play, tools, monkeypatch, name, option, declared, thinking
) -> None:
    output = OUTPUTS[name]
    if isinstance(output, bytes):
        by_bytes = {b"".join(frontend.token_bytes([i])): i for i in range(300)}
        output = [by_bytes[bytes([value])] for value in output]
    given = {"tools": tools if declared else (), "thinking": thinking, **option}
    runs = []
    for short in (True, False):
        if not short:
            monkeypatch.setattr(Session, "_prose", lambda self, span: None)
        run = play(output, chunks=[1] * 500, **given)
        runs.append((nameless(run.deltas), list(map(facts, run.previews)), said(run.session)))
    assert runs[0] == runs[1]


def test_a_dropped_preview_of_prose_leaves_no_trace(frontend, play) -> None:
    run = play("Some text", chunks=[1] * 50)
    before = run.session.summary()
    (token, *_) = frontend.tokenize("fox")
    run.session.preview(OutputSpan(token_ids=(token,)))
    assert run.session.summary() == before
    preview = run.session.preview(OutputSpan(token_ids=(token,)))
    run.session.commit(preview)
    assert run.session.summary().text == before.text + preview.deltas[0].text
