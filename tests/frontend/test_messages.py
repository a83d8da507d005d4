from __future__ import annotations

import pytest

from ninfer_core.contract.errors import InvalidPrompt, RequestError, Unsupported
from ninfer_core.contract.requests import ChatOptions, PromptInput
from ninfer_qwen3_5.frontend.messages import merge_leading_systems, read_messages

USER = {"role": "user", "content": "hi"}
PLAIN = (
    "{% for m in messages %}[{{ m.role }}:{{ m.content if m.content is string else m.content | "
    "map(attribute='text') | join('') }}]{% endfor %}"
)


def call(arguments):
    function = {"name": "search", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}


def render(frontend, messages, **chat):
    return frontend.render(PromptInput(messages=messages, chat=ChatOptions(**chat)))


def test_arguments_given_as_json_text_render_like_an_object(frontend):
    as_text = [USER, call('{"query": "Größe", "count": 2}'), USER]
    as_object = [USER, call({"query": "Größe", "count": 2}), USER]
    assert render(frontend, as_text) == render(frontend, as_object)
    assert "<parameter=query>\nGröße\n</parameter>" in render(frontend, as_text)


@pytest.mark.parametrize("arguments", ["", " ", "{}", None, {}])
def test_no_arguments_may_be_spelled_in_several_ways(frontend, arguments):
    assert "<function=search>\n</function>" in render(frontend, [USER, call(arguments), USER])


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"', [1], 3, "[" * 100_000])
def test_arguments_that_are_no_object_are_refused_by_name(frontend, arguments):
    with pytest.raises(InvalidPrompt) as caught:
        render(frontend, [USER, call(arguments), USER])
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"


def test_all_spellings_of_reasoning_give_one_prompt(frontend):
    def turn(**fields):
        messages = [USER, {"role": "assistant", "content": "a", **fields}]
        return render(frontend, messages, template_kwargs={"preserve_thinking": True})

    assert "thought" in turn(reasoning_content="thought")
    assert turn(reasoning_content="thought") == turn(reasoning="thought")
    assert turn(reasoning="thought") != turn()


def test_leading_system_messages_become_one(frontend):
    systems = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "text", "text": "b"}]},
        {"role": "system", "content": ""},
        {"role": "system", "content": None},
    ]
    expected = render(frontend, [{"role": "system", "content": "a\n\nb"}, USER])
    assert render(frontend, [*systems, USER]) == expected


def test_merging_texts_gives_text():
    messages = read_messages([{"role": "system", "content": t} for t in "abc"])
    assert merge_leading_systems(messages) == [{"role": "system", "content": "a\n\nb\n\nc"}]


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_later_system_message_is_a_user_message_where_the_template_refuses_it(
    frontend, role, place
):
    messages = [USER, {"role": "assistant", "content": "a"}, USER]
    late = [*messages[:place], {"role": role, "content": "now rhyme"}, *messages[place:]]
    same = [*messages[:place], {"role": "user", "content": "now rhyme"}, *messages[place:]]
    assert render(frontend, late) == render(frontend, same)


def test_a_later_system_message_stays_where_the_template_renders_it(opened, artifact):
    artifact.resources["chat_template.jinja"] = PLAIN.encode()
    messages = [USER, {"role": "developer", "content": "b"}, USER]
    assert render(opened(artifact), messages) == "[user:hi][system:b][user:hi]"


def test_a_later_system_message_is_not_lost_where_the_template_drops_it(opened, artifact):
    dropping = (
        "{% for m in messages if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    )
    artifact.resources["chat_template.jinja"] = dropping.encode()
    messages = [USER, {"role": "system", "content": "b"}]
    assert render(opened(artifact), messages) == "[user:hi][user:b]"


@pytest.mark.parametrize("content", [None, "", []])
def test_absent_content_is_empty_text(frontend, content):
    assert "<|im_start|>user\n<|im_end|>" in render(
        frontend, [{"role": "user", "content": content}]
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages[1]"),
        ({}, "messages[1].role"),
        ({"role": "wizard", "content": "x"}, "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "messages[1].role"),
        ({"role": "user", "content": 3}, "messages[1].content"),
        ({"role": "user", "content": {"text": "x"}}, "messages[1].content"),
        ({"role": "user", "content": ["x"]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0]"),
        ({"role": "user", "content": object()}, "messages[1]"),
        ({"role": "assistant", "reasoning": 3}, "messages[1].reasoning"),
        ({"role": "assistant", "reasoning": "a", "thinking": "b"}, "messages[1].reasoning"),
        ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": [3]}, "messages[1].tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"function": 3}]},
            "messages[1].tool_calls[0].function",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": ""}}]},
            "messages[1].tool_calls[0].function.name",
        ),
    ],
)
def test_a_malformed_message_is_refused_by_name(frontend, message, param):
    with pytest.raises(InvalidPrompt) as caught:
        render(frontend, [USER, message])
    assert caught.value.param == param
    assert param in str(caught.value)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "image", "image": "x"},
        {"type": "video", "video": "x"},
        {"type": "input_audio", "input_audio": {}},
        {"image": "x"},
    ],
)
def test_media_parts_are_refused_by_name(frontend, part):
    with pytest.raises(Unsupported) as caught:
        render(frontend, [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}])
    assert caught.value.param == "messages[0].content[1]"


def test_endless_nesting_is_an_error_not_a_crash(frontend):
    nested: object = "x"
    for _ in range(100_000):
        nested = [nested]
    for message in ({"role": "user", "content": nested}, {**USER, "extra": nested}):
        with pytest.raises(RequestError, match="deep"):
            render(frontend, [message])
    while isinstance(nested, list):
        nested = nested.pop()


def test_callers_messages_are_left_alone(frontend):
    messages = [{"role": "developer", "content": "a", "name": None}, USER, call("{}"), USER]
    copy = [dict(message) for message in messages]
    render(frontend, messages)
    assert messages == copy
