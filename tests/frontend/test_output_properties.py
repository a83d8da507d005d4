"""Outputs interpreted in any pieces, against each other and against a reading of the whole text."""

from __future__ import annotations

import json
import re
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.contract.events import FinishReason
from ninfer_core.contract.frontend import OutputSpan
from ninfer_core.contract.requests import ChatOptions, GenerationOptions, PromptInput

USER = [{"role": "user", "content": "hi"}]
END = "<|im_end|>"
FRAGMENTS = [
    *("a", "word ", "日本", "😀", "\n", "\n\n", " ", "<", "</", "12", "3", "stop"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_call>\n<function=search>\n"),
    *("<function=search>", "\n<function=stop_all>\n", "</function>", "<parameter=query>\n"),
    *("<parameter=count>", "\n</parameter>\n", "<func", "<par", "<|vision_pad|>", "null", '"'),
]
STOPS = [(), ("123",), ("12", "stop"), ("\n\n", "a\n"), ("<func",), ("日", "rd 1")]


def prompt_of(tools, thinking):
    return PromptInput(messages=USER, tools=tools, chat=ChatOptions(thinking=thinking))


def interpret(frontend, prepared, tokens, sizes, options, limit, dropped=()):
    """(reasoning, content, calls, finish, stop, tokens) with previews dropped on the way."""
    session = frontend.open_output(prepared, options, None)
    place, deltas, preview = 0, [], None
    for number, size in enumerate(sizes):
        span = OutputSpan(token_ids=tuple(tokens[place : place + size]))
        for junk in dropped[number : number + 1]:
            session.preview(OutputSpan(token_ids=tuple(junk), limit=FinishReason.CANCELLED))
        last = place + size >= len(tokens)
        preview = session.preview(
            OutputSpan(token_ids=span.token_ids, limit=limit if last else None)
        )
        session.commit(preview)
        deltas += preview.deltas
        place += preview.accepted
        if preview.finish is not None:
            break
    assert [t for d in deltas for t in d.token_ids] == list(tokens[:place])
    calls: dict[int, list[str]] = {}
    for tool in (d.tool for d in deltas if d.tool is not None):
        calls.setdefault(tool.index, [tool.name or ""])[-1:] += [tool.arguments]
    whole = [(name, "".join(arguments)) for name, *arguments in calls.values()]
    summary = session.summary()
    assert [(c.name, c.arguments) for c in summary.tool_calls] == whole[: len(summary.tool_calls)]
    for found in summary.tool_calls:
        json.loads(found.arguments)
    texts = [
        "".join(d.text for d in deltas if d.channel.value == name)
        for name in ("reasoning", "content")
    ]
    assert texts == [summary.reasoning, summary.text]
    return (*texts, whole, preview.finish, preview.stop_match, place, summary.warnings)


def splits(length):
    """Every way to part ``length`` tokens into spans."""
    for mask in range(1 << max(0, length - 1)):
        cuts = [0, *(i + 1 for i in range(length - 1) if mask >> i & 1), length]
        yield [b - a for a, b in pairwise(cuts)]


@st.composite
def outputs(draw, most=14):
    text = "".join(draw(st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=most)))
    return text + draw(st.sampled_from(["", END]))


@st.composite
def span_sizes(draw, length):
    sizes = []
    while sum(sizes) < length:
        sizes.append(min(draw(st.integers(1, 9)), length - sum(sizes)))
    return sizes


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_spans_and_dropped_previews_change_nothing(frontend, tools, data):
    tokens = frontend.tokenize(data.draw(outputs()))
    thinking, with_tools = data.draw(st.booleans()), data.draw(st.booleans())
    prepared = frontend.prepare(prompt_of(tools if with_tools else (), thinking))
    options = GenerationOptions(
        stop=data.draw(st.sampled_from(STOPS)), min_tokens=data.draw(st.sampled_from([0, 0, 3]))
    )
    limit = data.draw(st.sampled_from([None, FinishReason.OUTPUT_LIMIT]))
    straight = interpret(frontend, prepared, tokens, [len(tokens)], options, limit)
    sizes = data.draw(span_sizes(len(tokens)))
    ids = st.lists(st.integers(0, frontend.vocab_size - 1), max_size=4)
    junk = data.draw(st.lists(ids, min_size=len(sizes), max_size=len(sizes)))
    assert interpret(frontend, prepared, tokens, sizes, options, limit, junk) == straight


def test_previews_dropped_at_every_token_change_nothing(frontend, tools):
    """Each dropped preview carries on with what comes at other places of the same output."""
    call = "<tool_call>\n<function=search>\n<parameter=count>\n12\n</parameter>\n"
    texts = [
        f"a\n\n{call}<parameter=query>\nlong\n</parameter>\n</function>\n</tool_call>{END}",
        f"a\n{call}</function>\n</tool_call>\n and 日本 </think>\n\nb 123{END}",
        f"b\n<function=search>\n<parameter=query>\nx\n\n</parameter></function>\nc{END}",
    ]
    options = GenerationOptions(stop=("1234",))
    for thinking in (False, True):
        prepared = frontend.prepare(prompt_of(tools, thinking))
        for tokens in map(frontend.tokenize, texts):
            straight = interpret(frontend, prepared, tokens, [len(tokens)], options, None)
            for shift in (1, 3, len(tokens) // 2):
                junk = [(tokens * 2)[i + shift : i + shift + 5] for i in range(len(tokens))]
                ones = [1] * len(tokens)
                assert interpret(frontend, prepared, tokens, ones, options, None, junk) == straight


def test_every_split_of_short_outputs_is_equal(frontend, tools):
    prepared = frontend.prepare(prompt_of(tools, True))
    for text in (
        f"a\n</think>\n\nb12{END}",
        f"</think>\n<function=stop_all></function>{END}",
        "a</think>日本123",
    ):
        tokens = frontend.tokenize(text)[-14:]
        options = GenerationOptions(stop=("123",))
        straight = interpret(frontend, prepared, tokens, [len(tokens)], options, None)
        for sizes in splits(len(tokens)):
            assert interpret(frontend, prepared, tokens, sizes, options, None) == straight


def spelled_out(frontend, text):
    """The same text as marks and single bytes: another tokenisation."""
    table = frontend.token_bytes(range(frontend.vocab_size))
    marks = re.split(r"(<think>|</think>|<tool_call>|</tool_call>|<\|\w+\|>)", text)
    ids = []
    for index, piece in enumerate(marks):
        ids += (
            frontend.tokenize(piece)
            if index % 2
            else [table.index(bytes([b])) for b in piece.encode()]
        )
    return ids


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_how_the_text_is_tokenised_changes_nothing(frontend, tools, data):
    text = data.draw(outputs()) + END
    prepared = frontend.prepare(prompt_of(tools, data.draw(st.booleans())))
    options = GenerationOptions(stop=data.draw(st.sampled_from(STOPS)))
    results = []
    for tokens in (frontend.tokenize(text), spelled_out(frontend, text)):
        found = interpret(frontend, prepared, tokens, [1] * len(tokens), options, None)
        results.append((*found[:5], found[6]))
    assert results[0] == results[1]


# An independent reading of whole, well-formed outputs.

VALUE = r"(?:(?!</parameter>|<parameter=|</function>).)*"
FUNCTION = rf"<function=(\w+)>\s*((?:<parameter=\w+>{VALUE}</parameter>\s*)*)</function>"
BLOCK = rf"<tool_call>\s*{FUNCTION}\s*</tool_call>"
CALL = re.compile(rf"{BLOCK}|(?:(?<=\n)|(?<![\s\S])){FUNCTION}", re.DOTALL)
PARAMETER = re.compile(r"<parameter=(\w+)>(.*?)</parameter>", re.DOTALL)


def expected_reading(text, thinking, stops):
    """Reasoning, content, calls and finish of a whole text, with regular expressions alone."""
    reasoning, content = "", text
    if thinking:
        reasoning, mark, content = text.partition("</think>")
        cut = first_stop(reasoning, stops)
        if cut is not None:
            return reasoning[:cut], "", [], FinishReason.STOP_STRING
        if not mark:
            tail = re.search(rf"(?:{BLOCK}\s*)+\Z", text, re.DOTALL)
            if tail is None:
                return text, "", [], FinishReason.STOP_TOKEN
            reasoning, content = text[: tail.start()], tail[0]
        reasoning, content = reasoning.rstrip("\n"), content.lstrip("\n")
    return (reasoning, *read_content(content, stops))


def read_content(content, stops):
    shown, calls, place = "", [], 0
    for found in CALL.finditer(content):
        before = content[place : found.start()]
        before = before.lstrip() if calls else before
        cut = first_stop(before, stops)
        if cut is not None:
            finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP_STRING
            return shown + before[:cut], calls, finish
        shown += before.rstrip("\n")
        name, inner = found[1] or found[3], found[2] or found[4] or ""
        calls.append((name, [read_parameter(*p) for p in PARAMETER.findall(inner)]))
        place = found.end()
    rest = content[place:].lstrip() if calls else content
    cut = first_stop(rest, stops)
    if calls:
        finish = FinishReason.TOOL_CALLS
    else:
        finish = FinishReason.STOP_TOKEN if cut is None else FinishReason.STOP_STRING
    return shown + rest[:cut], calls, finish


def read_parameter(key, raw):
    raw = raw.removeprefix("\n").removesuffix("\n")
    if key == "count" and re.fullmatch(r"\s*-?(0|[1-9][0-9]*)\s*", raw):
        return key, int(raw)
    return key, raw


def first_stop(text, stops):
    """Where the first completed stop string begins."""
    ends = [(i + len(s), i) for s in stops for i in [text.find(s)] if i >= 0]
    return min(ends)[1] if ends else None


PROSE = st.text('ab 1234\n日😀<>/="', max_size=12)
VALUES = st.one_of(
    PROSE, st.integers(-99, 99).map(str), st.sampled_from(["<b>x</b>", "\n\n", "</p"])
)


@st.composite
def well_formed(draw):
    def call():
        keys = draw(st.lists(st.sampled_from(["query", "count"]), unique=True))
        inner = "".join(f"<parameter={k}>\n{draw(VALUES)}\n</parameter>\n" for k in keys)
        bare = f"<function=search>\n{inner}</function>"
        return f"<tool_call>\n{bare}\n</tool_call>" if draw(st.booleans()) else f"\n{bare}"

    def prose_or_call():
        return call() if draw(st.integers(0, 2)) == 0 else draw(PROSE)

    thinking = draw(st.booleans())
    text = "".join(prose_or_call() for _ in range(draw(st.integers(0, 4))))
    if thinking and draw(st.booleans()):
        text = "".join(prose_or_call() for _ in range(draw(st.integers(0, 3)))) + "</think>" + text
    return thinking, text


@settings(max_examples=500, deadline=None)
@given(data=st.data())
def test_well_formed_output_reads_as_its_whole_text(frontend, tools, data):
    thinking, text = data.draw(well_formed())
    stops = data.draw(st.sampled_from([(), ("12",), ("日", "a\n")]))
    if thinking and stops and "</think>" not in text:
        stops = ()
    prepared = frontend.prepare(prompt_of(tools, thinking))
    tokens = frontend.tokenize(text + END)
    sizes = data.draw(span_sizes(len(tokens)))
    options = GenerationOptions(stop=stops)
    found = interpret(frontend, prepared, tokens, sizes, options, None)
    calls = [(name, list(json.loads(arguments).items())) for name, arguments in found[2]]
    assert (*found[:2], calls, found[3]) == expected_reading(text, thinking, stops)
