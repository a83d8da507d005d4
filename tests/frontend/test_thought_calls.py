"""What only talks about calls, and calls that begin inside a thought."""

from __future__ import annotations

import pytest

from ninfer_core.contract.events import FinishReason

END = "<|im_end|>"


def ones():
    return iter(lambda: 1, None)


def call(*parameters):
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function=search>\n{inner}</function>\n</tool_call>"


QUERY = call(("query", "x"))


@pytest.mark.parametrize(
    "prose",
    [
        "It is written `<tool_call><function=search>` in one line.",
        f"Like this:\n{QUERY}\nand so on.",
        QUERY,
        "<tool_call>\n<function=search>\n<parameter=query>\nx",
        "<tool_call>",
        "A bare\n<function=search>\n<parameter=query>\nx\n</parameter>\n</function>",
    ],
)
def test_thinking_about_a_call_is_no_call(play, tools, prose):
    run = play(
        f"{prose}\n</think>\n\nIn words only.{END}", thinking=True, tools=tools, chunks=ones()
    )
    assert run.reasoning == prose
    assert (run.text(), run.calls) == ("In words only.", [])
    assert run.last.finish is FinishReason.STOP_TOKEN
    assert run.session.summary().warnings == ()


@pytest.mark.parametrize("count", [1, 2])
def test_a_thought_that_ends_in_calls_has_ended(play, tools, count):
    text = "I need to look.\n" + "\n".join([QUERY] * count) + "\n"
    run = play(text + END, thinking=True, tools=tools, chunks=ones())
    assert run.reasoning == "I need to look."
    assert run.calls == [("search", '{"query": "x"}')] * count
    assert run.text() == ""
    assert run.last.finish is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    "call_text",
    [
        QUERY[:-12],
        QUERY.replace("search", "erase"),
        QUERY.replace("<parameter", "stray <parameter"),
        QUERY.replace("</function>\n", ""),
        call(("query", "x"), ("query", "y")),
        "<tool_call>",
    ],
)
def test_a_thought_that_ends_in_something_like_a_call_stays_a_thought(play, tools, call_text):
    run = play(f"hm {call_text}{END}", thinking=True, tools=tools, chunks=ones())
    assert run.reasoning == f"hm {call_text}"
    assert run.calls == []
    assert run.last.finish is FinishReason.STOP_TOKEN


def test_a_thought_cut_within_a_call_stays_a_thought(play, tools):
    cut = FinishReason.OUTPUT_LIMIT
    run = play(f"hm {QUERY[:40]}", thinking=True, tools=tools, limit=cut, chunks=ones())
    assert (run.reasoning, run.calls) == (f"hm {QUERY[:40]}", [])
    run = play(f"hm {QUERY}", thinking=True, tools=tools, limit=cut, chunks=ones())
    assert len(run.session.summary().tool_calls) == 1
    assert run.last.finish is cut


def test_prose_that_mentions_the_bare_form_inline_is_content(play, tools):
    text = "Write `<function=search>` or <function=search> inline."
    run = play(text + END, tools=tools, chunks=ones())
    assert (run.text(), run.calls) == (text, [])


def test_names_that_no_tool_has_are_prose_in_the_bare_form(play, tools):
    text = "<function=erase>\n</function>"
    run = play(text + END, tools=tools, chunks=ones())
    assert (run.text(), run.calls) == (text, [])


def test_markers_never_appear_beside_calls_and_thoughts(play, tools):
    run = play(f"hm\n</think>\n\nWords.{END}", thinking=True, tools=tools, chunks=ones())
    assert (run.reasoning, run.text()) == ("hm", "Words.")
