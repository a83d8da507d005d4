from __future__ import annotations

import json

import pytest

from ninfer_core.contract.events import Channel, FinishReason
from ninfer_core.contract.frontend import OutputSpan
from ninfer_core.contract.requests import ChatOptions, GenerationOptions, PromptInput, ToolChoice

END = "<|im_end|>"
USER = [{"role": "user", "content": "hi"}]


def ones():
    return iter(lambda: 1, None)


def call(name="search", *parameters):
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


QUERY = call("search", ("query", "x"))


@pytest.fixture
def arguments(play, tools):
    """The arguments of the only call in an output, decoded."""

    def of(text, **options):
        run = play(text + END, tools=tools, chunks=ones(), **options)
        ((_, joined),) = run.calls
        return json.loads(joined)

    return of


def test_a_call_after_content(play, tools):
    run = play(f"I look.\n\n{call('search', ('query', 'x'), ('count', '3'))}{END}", tools=tools)
    assert run.text() == "I look."
    assert run.calls == [("search", '{"query": "x", "count": 3}')]
    assert run.last.finish is FinishReason.TOOL_CALLS
    (found,) = run.session.summary().tool_calls
    assert (found.name, found.arguments) == run.calls[0]
    assert run.session.summary().warnings == ()


def test_a_call_without_parameters(play, tools):
    assert play(call("stop_all") + END, tools=tools).calls == [("stop_all", "{}")]


def test_the_first_delta_has_id_and_name_and_arguments_stream(play, tools):
    text = call("search", ("query", "a long text that comes in many pieces, 日本語"))
    run = play(text + END, tools=tools, chunks=ones())
    deltas = [d.tool for d in run.deltas if d.tool is not None]
    head, *fragments = deltas
    assert (head.index, head.name, head.arguments) == (0, "search", "")
    assert head.id.startswith("call_")
    assert all(d.index == 0 and d.id is None and d.name is None for d in fragments)
    assert len(fragments) > 10
    assert all(d.channel is Channel.TOOL_CALL for d in run.deltas if d.tool is not None)


def test_several_calls_have_their_own_index_and_id(play, tools):
    run = play(f"{QUERY}\n{call('stop_all')}\n{QUERY}{END}", tools=tools, chunks=ones())
    assert [name for name, _ in run.calls] == ["search", "stop_all", "search"]
    ids = [found.id for found in run.session.summary().tool_calls]
    assert len(set(ids)) == 3
    assert run.text() == ""


def test_ids_differ_between_requests_but_not_between_previews(frontend, tools):
    prepared = frontend.prepare(
        PromptInput(messages=USER, tools=tools, chat=ChatOptions(thinking=False))
    )
    span = OutputSpan(token_ids=tuple(frontend.tokenize(QUERY + END)))
    first, second = (frontend.open_output(prepared, GenerationOptions(), None) for _ in range(2))
    assert first.preview(span).deltas == first.preview(span).deltas
    for output in (first, second):
        output.commit(output.preview(span))
    assert first.summary().tool_calls[0].id != second.summary().tool_calls[0].id


@pytest.mark.parametrize(
    "value",
    [
        "a < b && c > d",
        "<b>bold</b> <function> </func> <param=3> </parameter2>",
        "<function=other>",
        "line\n\n\nbreaks\n",
        "\n\nleading",
        'quote " backslash \\ tab \t null \x00',
        "</",
        "<",
        "日本 😀",
        "",
        "<tool_call> <think> </think>",
        "null",
        "7",
    ],
)
def test_text_arrives_as_it_was_written(arguments, value):
    assert arguments(call("search", ("query", value))) == {"query": value}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("count", "7", 7),
        ("ratio", "0.5", 0.5),
        ("exact", "True", True),
        ("filter", '{"a": [1, null]}', {"a": [1, None]}),
        ("filter", "not json", "not json"),
        ("tags", '["a",\n"b"]', ["a", "b"]),
        ("note", "null", None),
        ("note", "Null", "Null"),
        ("either", "7", 7),
        ("either", "x", "x"),
        ("unknown", "7", "7"),
    ],
)
def test_values_are_converted_by_the_schema(arguments, key, value, expected):
    assert arguments(call("search", (key, value))) == {key: expected}


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call><function=search><parameter=query>x</parameter></function></tool_call>",
        QUERY.replace(">\n<", ">\n\n  <"),
        "<function=search>\n<parameter=query>\nx\n</parameter>\n</function>",
        "<function=search>\n<parameter=query>\nx\n</parameter>\n</function>\n</tool_call>",
        "Now:\n<function=search>\n<parameter=query>\nx\n</parameter>\n</function>",
    ],
)
def test_looser_forms_are_calls_without_complaint(arguments, play, tools, text):
    assert arguments(text) == {"query": "x"}
    run = play(text + END, tools=tools)
    assert run.text() in ("", "Now:")
    assert run.session.summary().warnings == ()


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("<tool_call>\n<function=search>\n<parameter=query>\nx\n</tool_call>", "unclosed_call"),
        ("<tool_call>\n<function=search>\n<parameter=query>\nx", "unclosed_call"),
        ("<tool_call>\n<function=search>\n<parameter=query>\nx\n</parameter>", "unclosed_call"),
        ("<function=search>\n<parameter=query>\nx", "unclosed_call"),
    ],
)
def test_a_call_that_the_model_left_open_is_closed(play, tools, text, warning):
    run = play(text + END, tools=tools, chunks=ones())
    assert [(n, json.loads(a)) for n, a in run.calls] == [("search", {"query": "x"})]
    assert run.last.finish is FinishReason.TOOL_CALLS
    assert any(w.startswith(warning) for w in run.session.summary().warnings)


def test_a_value_ends_at_the_next_tag_of_the_form(arguments):
    text = call("search", ("query", "x"), ("count", "3")).replace("</parameter>\n", "")
    assert arguments(text) == {"query": "x", "count": 3}


@pytest.mark.parametrize(
    ("text", "content", "warning"),
    [
        ("<tool_call>{}</tool_call>", None, "malformed_structure"),
        ("<tool_call>\nno function\n</tool_call>", None, "malformed_structure"),
        ("<tool_call>\n</tool_call>", None, "malformed_structure"),
        ("<tool_call>", None, "malformed_structure"),
        ("<tool_call>\n<func", None, "malformed_structure"),
        ("a\n\n<tool_call>\n<function=>\n</function>", None, "malformed_structure"),
        ("<tool_call>\n<function=erase>\n</function>\n</tool_call>", None, "undeclared_tool"),
        ("The tag `<tool_call>` is special.", None, "malformed_structure"),
        ("<tool_call>" + " " * 80 + "<function=search>", None, "malformed_structure"),
    ],
)
def test_what_is_no_call_is_content_and_nothing_is_lost(play, tools, text, content, warning):
    run = play(text + END, tools=tools, chunks=ones())
    assert run.calls == []
    assert run.text() == (content or text)
    assert run.last.finish is FinishReason.STOP_TOKEN
    assert [w.partition(":")[0] for w in run.session.summary().warnings] == [warning]


def test_stray_text_in_a_call_goes_to_the_content(play, tools):
    text = call("search", ("query", "x")).replace("<parameter", "stray <parameter", 1)
    run = play(text.replace("</function>", "</function> after") + END, tools=tools, chunks=ones())
    assert run.calls == [("search", '{"query": "x"}')]
    assert "".join(run.text().split()) == "strayafter"
    assert {w.partition(":")[0] for w in run.session.summary().warnings} == {"malformed_structure"}


def test_a_parameter_without_a_name_goes_to_the_content(play, tools):
    text = call("search", ("query", "x"), ("", "y"))
    run = play(text + END, tools=tools, chunks=ones())
    assert run.calls == [("search", '{"query": "x"}')]
    assert "y" in run.text()


def test_a_parameter_given_twice_counts_once(play, tools):
    run = play(call("search", ("query", "x"), ("query", "y")) + END, tools=tools, chunks=ones())
    assert run.calls == [("search", '{"query": "x"}')]
    assert run.text().strip() == "y"
    assert run.session.summary().warnings[0].startswith("duplicate_parameter")


def test_text_after_a_call_is_content_with_a_warning(play, tools):
    run = play(f"{QUERY}\n\nThat is all.{END}", tools=tools, chunks=ones())
    assert run.text() == "That is all."
    assert run.last.finish is FinishReason.TOOL_CALLS
    assert [w.partition(":")[0] for w in run.session.summary().warnings] == ["trailing_content"]


@pytest.mark.parametrize("size", range(2, 45))
def test_a_cut_call_is_told_apart(play, frontend, tools, size):
    ids = frontend.tokenize(call("search", ("query", "some words"), ("count", "3")))
    run = play(ids[:size], tools=tools, limit=FinishReason.OUTPUT_LIMIT, chunks=ones())
    summary = run.session.summary()
    whole = "</function>" in frontend.detokenize(ids[:size])
    assert run.last.finish is FinishReason.OUTPUT_LIMIT
    assert run.text() == ""
    assert len(summary.tool_calls) == whole
    assert [w.partition(":")[0] for w in summary.warnings] == ([] if whole else ["cut_call"])


def test_content_before_a_cut_call_ends_without_the_layout_of_the_call(play, tools):
    cut = FinishReason.OUTPUT_LIMIT
    run = play(f"I look.\n\n{QUERY[:40]}", tools=tools, limit=cut, chunks=ones())
    assert run.text() == "I look."


@pytest.mark.parametrize("chunks", [None, ones()])
def test_a_whole_call_before_a_cut_one_is_kept(play, tools, chunks):
    text = QUERY + "\n" + QUERY[:40]
    run = play(text, tools=tools, limit=FinishReason.OUTPUT_LIMIT, chunks=chunks)
    assert run.last.finish is FinishReason.OUTPUT_LIMIT
    assert [c.arguments for c in run.session.summary().tool_calls] == ['{"query": "x"}']


def test_calls_are_text_without_tools_or_when_forbidden(play, tools):
    assert play(QUERY + END).text() == QUERY
    prompt = PromptInput(
        messages=USER,
        tools=tools,
        tool_choice=ToolChoice(mode="none"),
        chat=ChatOptions(thinking=False),
    )
    run = play(QUERY + END, prompt=prompt)
    assert (run.text(), run.calls) == (QUERY, [])
    assert run.last.finish is FinishReason.STOP_TOKEN


def test_without_parallel_calls_the_first_ends_the_output(play, tools):
    prompt = PromptInput(
        messages=USER,
        tools=tools,
        tool_choice=ToolChoice(parallel=False),
        chat=ChatOptions(thinking=False),
    )
    run = play(QUERY + "\n" + QUERY + END, prompt=prompt, chunks=ones())
    assert len(run.calls) == 1
    assert run.last.finish is FinishReason.TOOL_CALLS
    assert len(run.token_ids) < len(play(QUERY + END, tools=tools).token_ids)


def test_stop_strings_do_not_reach_into_calls(play, tools):
    text = call("search", ("query", "a STOP b"))
    run = play(text + END, tools=tools, stop=("STOP", "\n"), chunks=ones())
    assert run.calls == [("search", '{"query": "a STOP b"}')]
    assert run.last.finish is FinishReason.TOOL_CALLS


def test_a_stop_string_after_a_call_ends_with_the_calls(play, tools):
    run = play(f"{QUERY}\nok STOP{END}", tools=tools, stop=("STOP",), chunks=ones())
    assert run.text() == "ok "
    assert run.last.finish is FinishReason.TOOL_CALLS
    assert run.last.stop_match == "STOP"
