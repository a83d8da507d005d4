"""Thinking budgets: the closing is forced by control spans, and only while the thought is open."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ninfer_core.contract.events import Channel, FinishReason
from ninfer_core.contract.frontend import OutputSpan
from ninfer_core.contract.requests import ChatOptions, GenerationOptions, PromptInput

END = "<|im_end|>"
USER = [{"role": "user", "content": "hi"}]


class Thinker:
    """Drives a session as the engine does: what is forced comes next, as a control span."""

    def __init__(self, frontend, budget, *, thinking=True, tools=(), **options):
        prompt = PromptInput(messages=USER, tools=tools, chat=ChatOptions(thinking=thinking))
        prepared = frontend.prepare(prompt)
        self.output = frontend.open_output(
            prepared, GenerationOptions(thinking_budget=budget, **options), None
        )
        self.forced, self.deltas, self.finish = [], [], None

    def run(self, tokens, span=1, control=None):
        place = 0
        while place < len(tokens) and self.finish is None:
            preview = self.take(tokens[place : place + span])
            place += preview.accepted
            while preview.forced and self.finish is None:
                self.forced.append(preview.forced)
                assert len(self.forced) <= 100, "the closing never ends"
                preview = self.take(preview.forced[:control], control=True)
        return self

    def take(self, tokens, *, control=False):
        preview = self.output.preview(OutputSpan(token_ids=tuple(tokens), control=control))
        self.output.commit(preview)
        self.deltas += preview.deltas
        self.finish = preview.finish
        return preview

    @property
    def summary(self):
        return self.output.summary()


@pytest.mark.parametrize("span", [1, 3, 9])
@pytest.mark.parametrize("budget", [1, 5, 8])
def test_a_spent_budget_closes_the_thought(frontend, budget, span):
    """However many tokens come at once: those behind the budget are not accepted."""
    tokens = frontend.tokenize("9" * 40)
    thinker = Thinker(frontend, budget).run(tokens[:9], span)
    assert len(thinker.forced) == 1
    closing = frontend.detokenize(thinker.forced[0])
    assert closing.endswith("\n</think>\n\n")
    thinker.run(frontend.tokenize(f"42{END}"))
    assert thinker.summary.reasoning == "9" * budget + closing.removesuffix("\n</think>\n\n")
    assert thinker.summary.text == "9" * (9 - budget) + "42"
    assert thinker.summary.reasoning_tokens == budget + len(thinker.forced[0])
    assert thinker.finish is FinishReason.STOP_TOKEN


def test_budget_zero_closes_at_once_without_a_word(frontend):
    thinker = Thinker(frontend, 0).run(frontend.tokenize(f"942{END}"))
    assert [frontend.detokenize(f) for f in thinker.forced] == ["</think>\n\n"]
    assert (thinker.summary.reasoning, thinker.summary.text) == ("9", "42")


@pytest.mark.parametrize("budget", [1, 2, 8, 64, 4096])
def test_nothing_is_forced_after_the_model_closed_its_thought(frontend, budget):
    thinker = Thinker(frontend, budget).run(frontend.tokenize(f"</think>\n\n4{END}"))
    assert thinker.forced == []
    assert (thinker.summary.reasoning, thinker.summary.text) == ("", "4")


def test_nothing_is_forced_if_the_last_token_of_the_budget_closes_it(frontend):
    tokens = frontend.tokenize(f"99</think>4{END}")
    assert Thinker(frontend, 3).run(tokens).forced == []
    assert len(Thinker(frontend, 2).run(tokens).forced) == 1


def test_nothing_is_forced_without_a_thought_or_a_budget(frontend):
    assert Thinker(frontend, 1, thinking=False).run(frontend.tokenize("99999")).forced == []
    assert Thinker(frontend, None).run(frontend.tokenize("99999")).forced == []


def test_a_thought_that_ends_the_output_is_not_closed(frontend):
    thinker = Thinker(frontend, 2).run(frontend.tokenize(f"9{END}"))
    assert (thinker.forced, thinker.finish) == ([], FinishReason.STOP_TOKEN)


def test_forced_tokens_are_reasoning_in_every_delta(frontend):
    thinker = Thinker(frontend, 2).run(frontend.tokenize("99"))
    assert all(delta.channel is Channel.REASONING for delta in thinker.deltas)
    assert sum(len(d.token_ids) for d in thinker.deltas) == 2 + len(thinker.forced[0])


def test_stop_strings_and_stop_ids_do_not_end_a_forced_span(frontend):
    stops = {"stop": ("Considering",), "stop_token_ids": tuple(frontend.tokenize("C"))}
    thinker = Thinker(frontend, 2, **stops).run(frontend.tokenize("99"))
    assert len(thinker.forced) == 1
    assert thinker.finish is None
    assert "Considering" in thinker.summary.reasoning


def test_a_forced_span_may_come_in_pieces(frontend):
    whole = Thinker(frontend, 2).run(frontend.tokenize(f"994{END}"))
    parts = Thinker(frontend, 2).run(frontend.tokenize(f"994{END}"), control=3)
    assert len(parts.forced) > 1
    assert parts.forced[0] == whole.forced[0]
    assert parts.forced[1] == whole.forced[0][3:]
    assert parts.summary == whole.summary


def test_the_closing_is_asked_for_until_it_comes(frontend):
    thinker = Thinker(frontend, 1)
    for _ in range(3):
        assert thinker.take(frontend.tokenize("9")).forced
    dropped = thinker.output.preview(OutputSpan(token_ids=tuple(frontend.tokenize("</think>"))))
    assert dropped.forced == ()
    assert thinker.take(frontend.tokenize("9")).forced


def test_thinking_room_counts_down(frontend):
    thinker = Thinker(frontend, 3)
    rooms = [thinker.output.thinking_room]
    for text in ("9", "9", "9", "</think>"):
        thinker.take(frontend.tokenize(text))
        rooms.append(thinker.output.thinking_room)
    assert rooms == [3, 2, 1, 0, None]
    assert Thinker(frontend, None).output.thinking_room is None


def test_the_guidance_can_be_chosen(opened, artifact):
    frontend = opened(artifact, options={"thinking_guidance": "Enough."})
    thinker = Thinker(frontend, 1).run(frontend.tokenize("9"))
    assert frontend.detokenize(thinker.forced[0]) == "\n\nEnough.\n</think>\n\n"


def test_a_call_inside_the_thought_is_not_torn_by_the_budget(frontend, tools):
    call = "<tool_call>\n<function=search>\n<parameter=query>\nlong long value\n</parameter>\n"
    text = f"9{call}</function>\n</tool_call>{END}"
    for budget in range(2, 30, 3):
        thinker = Thinker(frontend, budget, tools=tools).run(frontend.tokenize(text))
        assert thinker.forced == []
        assert [c.arguments for c in thinker.summary.tool_calls] == ['{"query": "long long value"}']
        assert thinker.summary.reasoning == "9"
        assert thinker.finish is FinishReason.TOOL_CALLS


def parts_of(thinker):
    """What a reader sees: forced spans, whole text of each channel, the end. Ids of calls are
    drawn."""
    summary = thinker.summary
    calls = tuple(replace(call, id="") for call in summary.tool_calls)
    produced = sum(len(delta.token_ids) for delta in thinker.deltas)
    return thinker.forced, replace(summary, tool_calls=calls), thinker.finish, produced


@pytest.mark.parametrize("span", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("budget", [0, 1, 2, 4, 7])
def test_a_thought_that_the_model_opens_itself_is_cut_where_single_tokens_cut_it(
    frontend, budget, span
):
    """The thought opens within a span, which goes on behind the budget."""
    for before in ("", "</think>"):
        tokens = frontend.tokenize(f"{before}<think>99999999</think>\n\n42{END}")
        single, spans = (
            Thinker(frontend, budget, thinking=False).run(tokens, count) for count in (1, span)
        )
        assert parts_of(spans) == parts_of(single)
        assert len(single.forced) == 1, before
        # The mark opens the thought and is its first token.
        shown = "9" * max(0, budget - 1) + frontend.detokenize(single.forced[0])
        assert single.summary.reasoning == shown.removesuffix("</think>\n\n").strip("\n")
        assert single.summary.text.endswith("42")


@pytest.mark.parametrize("seed", range(12))
def test_spans_of_any_length_mean_what_single_tokens_mean(frontend, tools, seed):
    """Marks, calls and prose in any order, stops among them."""
    rng = random.Random(seed)
    pieces = ["<think>", "</think>", "9", "42", "\n\n", "<tool_call>", "</tool_call>", "é", END]
    value = "<parameter=query>\n1\n</parameter>"
    call = f"<tool_call>\n<function=search>\n{value}\n</function>\n</tool_call>"
    for _ in range(20):
        text = "".join(rng.choice([*pieces, call]) for _ in range(rng.randint(3, 14)))
        tokens = frontend.tokenize(text)
        options = {
            "thinking": rng.random() < 0.4,
            "tools": tools if rng.random() < 0.5 else (),
            "stop": ("942",) if rng.random() < 0.3 else (),
        }
        budget, span = rng.randint(0, 6), rng.randint(2, 9)
        single, spans = (
            Thinker(frontend, budget, **options).run(tokens, count) for count in (1, span)
        )
        assert parts_of(spans) == parts_of(single), (text, budget, span, options)
