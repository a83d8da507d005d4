"""Reported faults of thoughts, calls, stops and characters, on the Responses routes."""

from __future__ import annotations

import json

import pytest

TOOL = {
    "type": "function",
    "name": "search",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
    },
}
CALL = (
    "<tool_call>\n<function=search>\n<parameter=query>\nthe quick brown fox jumps over dogs\n"
    "</parameter>\n<parameter=limit>\n7\n</parameter>\n</function>\n</tool_call>"
)
THINK = {"chat_template_kwargs": {"enable_thinking": True}}
ARGUMENTS = {"query": "the quick brown fox jumps over dogs", "limit": 7}


def ask(server, **fields):
    body = {"model": "scripted", "input": "hi", "extra_body": fields.pop("extra_body", {})}
    return server.client().responses.create(**body | fields)


def grown(events):
    """The items that the deltas of a stream add up to, as (type, text)."""
    items = []
    for event in events:
        if event.type == "response.output_item.added":
            assert event.output_index == len(items)
            items.append([event.item.type, ""])
        elif event.type.endswith(".delta"):
            items[event.output_index][1] += event.delta
    return [tuple(item) for item in items]


def both(server, **fields):
    """The items without and with a stream, as (type, text); they must be equal."""
    whole = ask(server, **fields)
    plain = [
        (item.type, item.arguments if item.type == "function_call" else item.content[0].text)
        for item in whole.output
    ]
    events = list(ask(server, stream=True, **fields))
    assert grown(events) == plain
    assert events[-1].response.status == whole.status
    return plain, whole


def test_a_thought_that_mentions_a_call_makes_none(says):
    server = says(
        "One writes `<tool_call>\n<function=search>` and closes it.\n</think>\n\nIn words only."
    )
    items, done = both(server, tools=[TOOL], extra_body=THINK)
    assert [kind for kind, _ in items] == ["reasoning", "message"]
    assert items[0][1].startswith("One writes `<tool_call>")
    assert (items[1][1], done.status) == ("In words only.", "completed")


def test_a_thought_and_an_answer_beside_unused_tools_stay_apart(says):
    items, _ = both(says("None.\n</think>\n\nFour."), tools=[TOOL], extra_body=THINK)
    assert [(kind, text.strip()) for kind, text in items] == [
        ("reasoning", "None."),
        ("message", "Four."),
    ]


def test_without_thinking_the_answer_is_the_message(says):
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert both(says("Four."), extra_body=off)[0] == [("message", "Four.")]


@pytest.mark.usefixtures("one_by_one")
def test_arguments_come_in_many_pieces(says):
    server = says(CALL)
    items, _ = both(server, tools=[TOOL])
    [(kind, arguments)] = items
    assert (kind, json.loads(arguments)) == ("function_call", ARGUMENTS)
    events = list(ask(server, tools=[TOOL], stream=True))
    pieces = [e for e in events if e.type == "response.function_call_arguments.delta"]
    assert len(pieces) > 5


@pytest.mark.parametrize("cut", [12, 20, 28])
def test_a_call_that_is_cut_is_incomplete_at_any_place(says, cut):
    items, done = both(says(CALL), tools=[TOOL], max_output_tokens=cut)
    assert done.status == "incomplete"
    assert [kind for kind, _ in items] == ["function_call"]
    assert done.output[0].status == "incomplete"
    assert json.dumps(ARGUMENTS).startswith(items[0][1])


def test_a_whole_call_behind_which_the_text_is_cut_is_complete(says):
    _, done = both(says(CALL + "\n" + CALL), tools=[TOOL], max_output_tokens=60)
    assert done.status == "incomplete"
    assert done.output[0].status == "completed"
    assert json.loads(done.output[0].arguments) == ARGUMENTS


def test_no_half_of_a_stop_string_is_sent(says):
    items, done = both(says("The quick brown fox jumps."), extra_body={"stop": ["own fox"]})
    assert items == [("message", "The quick br")]
    assert done.status == "completed"


def test_characters_over_several_tokens_come_whole(says):
    text = "🙂🦊🌍 日本語 世界 🎉👩‍🔬 é"
    assert both(says(text))[0] == [("message", text)]
