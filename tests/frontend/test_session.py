from __future__ import annotations

import pytest

from ninfer_core.contract.errors import ConstraintDeadEnd, EngineFailure
from ninfer_core.contract.events import Channel, FinishReason
from ninfer_core.contract.frontend import OutputSpan
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import TokenLogprobs

END = "<|im_end|>"


def one_by_one():
    return iter(lambda: 1, None)


@pytest.fixture
def session(frontend):
    def opener(text="a", **options):
        prepared = frontend.prepare(PromptInput(text=text))
        return frontend.open_output(prepared, GenerationOptions(**options), None)

    return opener


@pytest.mark.parametrize("chunks", [None, one_by_one()])
def test_thought_and_answer_are_parted(play, chunks):
    run = play(f"Let me think.\nDone.\n</think>\n\nIt is 42.\n{END}", thinking=True, chunks=chunks)
    assert run.reasoning == "Let me think.\nDone."
    assert run.text() == "It is 42.\n"
    assert run.last.finish is FinishReason.STOP_TOKEN
    assert run.last.stop_match is None


def test_without_thinking_the_answer_is_content(play):
    run = play(f"It is 42.{END}", thinking=False)
    assert (run.reasoning, run.text()) == ("", "It is 42.")


@pytest.mark.parametrize("mark", ["</think>", "\n</think>\n\n"])
def test_an_empty_thought_leaves_no_trace(play, mark):
    run = play(f"{mark}Yes{END}", thinking=True)
    assert (run.reasoning, run.text()) == ("", "Yes")


def test_a_repeated_end_of_thought_is_dropped(play):
    run = play(f"a</think>\n\n</think>\n\nb</think>c{END}", thinking=True)
    assert (run.reasoning, run.text()) == ("a", "bc")


def test_a_thought_that_the_output_opens_itself(play):
    run = play(f"<think>\nhm\n</think>\n\nb<think>c{END}", thinking=False)
    assert (run.reasoning, run.text()) == ("hm", "b<think>c")


def test_an_open_thought_may_be_opened_again_at_its_beginning_only(play):
    run = play(f"<think>\na<think>b</think>c{END}", thinking=True)
    assert (run.reasoning, run.text()) == ("a<think>b", "c")


def test_a_thought_without_end_keeps_its_line_breaks(play):
    run = play(f"a\n\n{END}", thinking=True)
    assert (run.reasoning, run.text()) == ("a\n\n", "")


def test_raw_output_is_content_with_all_marks(play):
    text = "a</think>\n\n<think>b<tool_call>\n<function=search>"
    run = play(text + END, prompt=PromptInput(text="<think>"))
    assert (run.reasoning, run.text(), run.calls) == ("", text, [])


def test_special_tokens_have_no_text(play):
    run = play(f"a<|vision_pad|>b<|im_start|>{END}")
    assert run.text() == "ab"


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>"])
def test_every_end_of_sequence_ends(play, frontend, end):
    run = play(f"a{end}b")
    assert run.text() == "a"
    assert run.last.finish is FinishReason.STOP_TOKEN
    assert run.token_ids == frontend.tokenize(f"a{end}")
    assert run.last.accepted == len(run.token_ids)


def test_stop_ids_of_the_request_end_and_are_named(play, frontend):
    (stop,) = frontend.tokenize("7")
    run = play("1273", stop_token_ids=(stop,), ignore_eos=True)
    assert run.text() == "12"
    assert run.last.stop_match == stop
    assert run.session.stop_token_ids == {stop}


def test_ignored_end_of_sequence_goes_on_without_text(play):
    run = play(f"a{END}b", ignore_eos=True)
    assert run.text() == "ab"
    assert run.last.finish is None
    assert run.session.stop_token_ids == frozenset()


def test_minimum_holds_off_stop_ids_and_stop_strings(play, frontend):
    (stop,) = frontend.tokenize("7")
    run = play("7127347", min_tokens=4, stop_token_ids=(stop,))
    assert run.text() == "712734"
    run = play("1919191", min_tokens=4, stop=("19",))
    assert run.text() == "19"
    assert run.last.accepted == 4
    assert run.last.finish is FinishReason.STOP_STRING


def test_a_stop_string_over_chunk_edges_is_not_shown(play):
    run = play(f"The quick brown fox jumps{END}", stop=("own fox",), chunks=one_by_one())
    assert run.text() == "The quick br"
    assert run.last.stop_match == "own fox"
    assert all("ow" not in delta.text for delta in run.deltas)


def test_only_the_ambiguous_tail_is_held(play):
    run = play("1212", stop=("123",), chunks=one_by_one())
    assert [d.text for d in run.deltas] == ["", "", "12", ""]
    assert play(f"1212{END}", stop=("123",)).text() == "1212"


def test_stop_strings_apply_to_reasoning_too(play):
    run = play(f"a b STOP c</think>d{END}", thinking=True, stop=("STOP",))
    assert (run.reasoning, run.text()) == ("a b ", "")
    assert run.last.finish is FinishReason.STOP_STRING


def test_a_stop_string_does_not_reach_over_the_end_of_a_thought(play):
    run = play(f"a 1</think>2 b{END}", thinking=True, stop=("12", "1\n\n2"))
    assert (run.reasoning, run.text()) == ("a 1", "2 b")


def test_a_stop_string_of_line_breaks_does_not_match_layout(play):
    run = play(f"a\n</think>\n\nb\nc{END}", thinking=True, stop=("\n\n",))
    assert (run.reasoning, run.text()) == ("a", "b\nc")


def test_a_line_break_as_stop_string_ends_at_once(play, tools):
    run = play("one\ntwo", stop=("\n",), tools=tools, chunks=one_by_one())
    assert run.text() == "one"
    assert run.last.finish is FinishReason.STOP_STRING


def test_characters_over_token_edges(play, frontend):
    text = "😀日本" * 3
    ids = [i for character in text.encode() for i in byte_token(frontend, character)]
    assert len(ids) == len(text.encode())
    run = play(ids, chunks=one_by_one())
    assert run.text() == text
    assert "\ufffd" not in "".join(d.text for d in run.deltas)


def byte_token(frontend, byte):
    ids = range(frontend.vocab_size)
    table = frontend.token_bytes(ids)
    return [table.index(bytes([byte]))]


def test_half_a_character_is_malformed_when_the_model_ends_there(play, frontend):
    half = byte_token(frontend, 0xE6) + byte_token(frontend, 0x97)
    stop = frontend.tokenize(END)
    assert play([*half, *stop]).text() == "\ufffd"
    assert play([*half, *frontend.tokenize("a"), *stop]).text() == "\ufffda"
    inside = [*half, *frontend.tokenize("</think>a"), *stop]
    run = play(inside, thinking=True)
    assert (run.reasoning, run.text()) == ("\ufffd", "a")


@pytest.mark.parametrize("limit", [FinishReason.OUTPUT_LIMIT, FinishReason.CANCELLED])
def test_half_a_character_is_dropped_when_the_output_is_cut(play, frontend, limit):
    half = byte_token(frontend, 0xE6) + byte_token(frontend, 0x97)
    run = play([*frontend.tokenize("a"), *half], limit=limit)
    assert run.text() == "a"
    assert run.last.finish is limit
    assert len(run.token_ids) == 3


def test_a_limit_lets_go_of_what_is_held(play):
    run = play("ab 12", stop=("123",), limit=FinishReason.OUTPUT_LIMIT)
    assert run.text() == "ab 12"


def test_an_end_in_the_last_token_is_the_models_own(play):
    run = play(f"a{END}", limit=FinishReason.OUTPUT_LIMIT)
    assert run.last.finish is FinishReason.STOP_TOKEN


def test_a_span_without_tokens_can_end_the_output(session, frontend):
    output = session(stop=("123",))
    output.commit(output.preview(OutputSpan(token_ids=tuple(frontend.tokenize("12")))))
    preview = output.preview(OutputSpan(token_ids=(), limit=FinishReason.CANCELLED))
    assert (preview.accepted, preview.finish) == (0, FinishReason.CANCELLED)
    assert [d.text for d in preview.deltas] == ["12"]


def test_tokens_and_logprobs_go_with_their_channel(frontend, play):
    text = f"a</think>b{END}c"
    ids = frontend.tokenize(text)
    run = play(text, thinking=True)
    owned = {c: [t for d in run.deltas if d.channel is c for t in d.token_ids] for c in Channel}
    assert owned[Channel.REASONING] == frontend.tokenize("a</think>")
    assert owned[Channel.CONTENT] == frontend.tokenize(f"b{END}")
    assert run.session.summary().reasoning_tokens == 2
    session = run.session
    rows = tuple(TokenLogprobs(i, -0.5) for i in ids)
    prepared = frontend.prepare(PromptInput(messages=[{"role": "user", "content": "hi"}]))
    session = frontend.open_output(prepared, GenerationOptions(), None)
    preview = session.preview(OutputSpan(token_ids=tuple(ids), logprobs=rows))
    for delta in preview.deltas:
        assert [row.token_id for row in delta.logprobs] == list(delta.token_ids)
    assert sum(len(d.logprobs) for d in preview.deltas) == preview.accepted == len(ids) - 1


def test_boundaries_are_where_a_template_can_begin_again(frontend, play, tools):
    call = "<tool_call>\n<function=stop_all>\n</function>\n</tool_call>"
    text = f"a</think>\n\nb\n\n{call}{END}"
    run = play(text, thinking=True, tools=tools)
    ends = [len(frontend.tokenize(t)) for t in ("a</think>", text.removesuffix(END), text)]
    assert run.last.boundaries == tuple(ends)


def test_summary_holds_what_was_committed(session, frontend):
    output = session()
    spans = [tuple(frontend.tokenize(t)) for t in ("one ", "two ")]
    output.commit(output.preview(OutputSpan(token_ids=spans[0])))
    output.preview(OutputSpan(token_ids=spans[1]))
    assert output.summary().text == "one "


def test_a_preview_is_used_once_and_only_the_latest(session, frontend):
    output, span = session(), OutputSpan(token_ids=tuple(frontend.tokenize("a")))
    stale, latest = output.preview(span), output.preview(span)
    with pytest.raises(EngineFailure):
        output.commit(stale)
    output.commit(latest)
    with pytest.raises(EngineFailure):
        output.commit(latest)


def test_nothing_comes_after_the_end(session, frontend):
    output = session()
    span = OutputSpan(token_ids=tuple(frontend.tokenize(END)))
    output.commit(output.preview(span))
    with pytest.raises(EngineFailure):
        output.preview(span)


class Matcher:
    """Allows the given tokens, in order, and remembers how far it is."""

    def __init__(self, allowed, place=0):
        self.allowed, self.place = allowed, place

    def fork(self):
        return Matcher(self.allowed, self.place)

    def fill(self, drafts, out):
        return self.place

    def accept(self, token_ids):
        legal = 0
        for token in token_ids:
            if self.allowed[self.place : self.place + 1] != [token]:
                break
            self.place, legal = self.place + 1, legal + 1
        return legal


class Compiler:
    def __init__(self, matcher):
        self.matcher = matcher

    def check(self, source):
        pass

    def open(self, compiled):
        return self.matcher


def test_a_matcher_moves_with_commits_alone(opened, artifact, frontend):
    ids = frontend.tokenize("123")
    compiler = Compiler(Matcher(ids))
    constrained = opened(artifact, grammar_backend=lambda vocabulary: compiler)
    prepared = constrained.prepare(PromptInput(text="a"))
    output = constrained.open_output(prepared, GenerationOptions(), object())
    assert output.preview(OutputSpan(token_ids=(ids[0],))).accepted == 1
    masks = output.masks()
    assert masks.fill((), None) == 0
    output.commit(output.preview(OutputSpan(token_ids=tuple(ids[:2]))))
    assert output.masks() is masks
    assert masks.fill((), None) == 2
    with pytest.raises(ConstraintDeadEnd, match="constraint"):
        output.preview(OutputSpan(token_ids=(ids[0],)))


def test_without_a_constraint_there_are_no_masks(session):
    assert session().masks() is None
