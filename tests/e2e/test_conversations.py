"""Conversations over kept contexts: what is read again, and what is answered."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from ninfer_core.contract.events import ReuseReason
from ninfer_core.contract.requests import CacheRequest, ChatOptions, PromptInput

EDIT = "rows of an edit"

pytestmark = pytest.mark.usefixtures("accept_scripts")


@pytest.fixture(scope="module")
def verdict(accept_scripts):
    """Forty conversations in one engine; some have six turns."""
    from _talks import shortened, talks
    from conversations import judged

    led = talks(0, 40, 2026, lambda index: 6 if index in (3, 13) else 2)
    return judged([shortened(talk, 10) for talk in led])


def test_follow_ups_read_what_lies_behind_the_shared_messages(verdict) -> None:
    assert not [fault for fault in verdict.faults if not fault["fault"].startswith("answer")]
    counts = verdict.counts
    assert counts["follow-ups"] > 70
    assert counts["rows launched"] < counts["prompt tokens"] * 0.6
    assert counts["captures"] > 40


def test_answers_equal_those_of_prompts_from_the_root(verdict) -> None:
    faults = [fault for fault in verdict.faults if fault["fault"].startswith("answer")]
    assert not faults
    assert verdict.counts["same splits"] > 80


def test_a_prompt_goes_on_from_where_an_answer_ended() -> None:
    """The state there was built token by token; the reference goes the same way."""
    from conversations import judged

    verdict = judged([_kept_thoughts(number) for number in range(2)], max_context=1024)
    assert not verdict.faults
    assert verdict.counts["steps among spans"] > 0


def test_ways_are_read_when_sequences_have_ended(monkeypatch) -> None:
    """Where rounds are launched ahead, an answer is there before its sequence ends; here long."""
    import _reuse
    import conversations

    import ninfer_qwen3_5.build as build

    monkeypatch.setattr(build, "_entered", lambda device, opening: ExitStack())
    attach, ahead = _reuse.Watch.attach, []

    def attach_late(watch, program) -> None:
        attach(watch, program)
        finish = program.finish

        def finish_late(handle, *, keep):
            time.sleep(0.05)
            return finish(handle, keep=keep)

        program.finish = finish_late
        ahead.append(program.limits.rounds_ahead)

    monkeypatch.setattr(_reuse.Watch, "attach", attach_late)
    verdict = conversations.judged([_kept_thoughts(0)], max_context=1024)
    assert not verdict.faults
    assert verdict.counts["steps among spans"] > 0
    assert ahead == [1, 1]


def test_the_judge_sees_another_way_and_tells_both() -> None:
    """A span of the way that a prompt went is recorded elsewhere; the reference cannot go it."""
    from _reuse import Watch, described, open_watched
    from conversations import Verdict, judge_answers, lead

    watch, verdict = Watch(), Verdict()
    with open_watched(watch, max_context=1024, extra_state_slots=30) as (engine, _):
        turns = lead(engine, watch, [_kept_thoughts(0)])
        assert engine.drain(60)
    last = turns[-1].run
    true, (first, *rest) = last.spans, last.spans
    last.spans = (replace(first, stop=first.stop - 1), *rest)
    judge_answers(turns, verdict)
    (fault,) = verdict.faults
    assert fault["fault"] == "the reference went another way"
    assert (fault["got"], fault["wanted"]) == (described(true), described(last.spans))


def _kept_thoughts(seed: int):
    """Questions so short that a point behind one is not worth keeping without the answer."""
    from _talks import Client, spoken

    chat = ChatOptions(thinking=True, template_kwargs={"preserve_thinking": True})
    client = Client(random.Random(seed), chat=chat)
    for _ in range(2):
        client.say(f"{spoken(client.rng, 32)} What is 17 + {client.rng.randint(1, 60)}?")
        client.hear((yield client.ask()))


def test_an_edited_question_behind_a_long_answer_reads_the_question_alone(verdict) -> None:
    assert EDIT not in {fault["fault"] for fault in verdict.faults}


def test_the_judge_sees_points_that_are_not_there() -> None:
    """A frontend without restore points breaks the bound, and the judge says where."""
    faults = _row_faults(["sharing"], lambda prepared: replace(prepared, restore_points=()))
    assert {fault["fault"] for fault in faults} == {"rows"}


def _row_faults(kinds, change):
    from _reuse import Watch, open_watched
    from _talks import talks
    from conversations import Verdict, judge_rows, lead

    watch, verdict = Watch(), Verdict()
    with open_watched(watch, max_context=1024, extra_state_slots=30) as (engine, _):
        prepare = engine.prepare
        engine.prepare = lambda prompt: change(prepare(prompt))
        turns = lead(engine, watch, talks(0, 2, 5, lambda _: 2, kinds))
    judge_rows(turns, verdict)
    return verdict.faults


@pytest.mark.parametrize("second", ["system", "tools", "thinking", "salt"])
def test_other_prompts_share_no_more_than_what_is_equal(second) -> None:
    from _reuse import Watch, open_watched
    from _said import Said
    from _talks import spoken

    system, question = spoken(random.Random(1), 150), spoken(random.Random(2), 90)
    first = _prompt(system, question)
    tool = {"type": "function", "function": {"name": "clock", "parameters": {}}}
    other = {
        "system": _prompt(f"Now {system}", question),
        "tools": replace(first, tools=(tool,)),
        "thinking": replace(first, chat=ChatOptions(thinking=True)),
        "salt": replace(first, cache=CacheRequest(salt="another")),
    }[second]
    watch = Watch()
    with open_watched(watch, max_context=1024, extra_state_slots=20) as (engine, _):
        said = Said.by(engine)
        asked = engine.prepare(first)
        said.add(asked.token_ids, engine.submit(asked, _greedy()).result(60).token_ids)
        parting = engine.prepare(other)
        usage = engine.submit(parting, _greedy()).result(60).usage
        again = engine.submit(engine.prepare(first), _greedy()).result(60).usage
    common = said.shared(parting.token_ids)
    expected = {"system": 0, "tools": 0, "salt": 0, "thinking": common - 4}[second]
    assert usage.cached_tokens == expected
    assert common < parting.length or second == "salt"
    assert again.cached_tokens > 0


def test_requests_outside_the_cache_leave_nothing() -> None:
    from _reuse import Watch, open_watched
    from _talks import outside
    from conversations import lead

    watch = Watch()
    with open_watched(watch, max_context=1024, extra_state_slots=20) as (engine, program):
        before = program.capacity()
        turns = lead(engine, watch, [outside(random.Random(3), 3)])
        assert [turn.run.launched for turn in turns] == [turn.prepared.length for turn in turns]
        reasons = {turn.result.timings.reuse_reason for turn in turns}
        assert reasons == {ReuseReason.DISABLED}
        assert program.capacity() == before
        assert engine.stats().checkpoints == 0


def test_a_cancelled_turn_leaves_points_of_its_prompt_alone() -> None:
    from _reuse import Watch, open_watched
    from _talks import spoken
    from conversations import give_up

    prompt = _prompt(spoken(random.Random(4), 150), spoken(random.Random(5), 90))
    with open_watched(Watch(), keeps=False) as (engine, _):
        expected = engine.submit(prompt, _greedy(ignore=True)).result(60)
    with open_watched(Watch(), max_context=1024, extra_state_slots=20) as (engine, program):
        for after in (0, 1, 3):
            asked = engine.prepare(prompt)
            with engine.submit(asked, _greedy(ignore=True)) as handle:
                give_up(handle, after)
                handle.result(60)
        asked = engine.prepare(prompt)
        result = engine.submit(asked, _greedy(ignore=True)).result(60)
        program.check()
        kept = {point.frontier for point in asked.restore_points}
        stats = engine.stats()
    assert result.usage.cached_tokens in kept
    assert stats.kept_ends <= 1
    assert result.token_ids == expected.token_ids


def _prompt(system: str, question: str) -> PromptInput:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return PromptInput(messages=messages)


def _greedy(*, ignore: bool = False):
    from ninfer_core.contract.requests import GenerationOptions
    from ninfer_core.contract.sampling import SamplingParams

    sampling = SamplingParams(temperature=0.0)
    return GenerationOptions(sampling=sampling, max_new_tokens=24, ignore_eos=ignore)
