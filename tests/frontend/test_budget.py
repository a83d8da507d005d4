"""Thinking budgets: the closing is forced by control spans, and only while the thought is open."""

from __future__ import annotations

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
            place += span
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


@pytest.mark.parametrize("span", [1, 3])
@pytest.mark.parametrize("budget", [1, 5, 8])
def test_a_spent_budget_closes_the_thought(frontend, budget, span):
    tokens = frontend.tokenize("9" * 40)
    thinker = Thinker(frontend, budget).run(tokens[:9], span)
    assert len(thinker.forced) == 1
    closing = frontend.detokenize(thinker.forced[0])
    assert closing.endswith("\n</think>\n\n")
    thinker.run(frontend.tokenize(f"42{END}"))
    produced = -(-budget // span) * span
    assert thinker.summary.reasoning == "9" * produced + closing.removesuffix("\n</think>\n\n")
    assert thinker.summary.text == "9" * (9 - produced) + "42"
    assert thinker.summary.reasoning_tokens == produced + len(thinker.forced[0])
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
