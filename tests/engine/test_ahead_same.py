"""The same requests give the same answers whether rounds are launched ahead or not."""

from __future__ import annotations

import random

import pytest

from ninfer_core.contract.checkpoints import ResumeKind
from ninfer_core.contract.errors import ConstraintDeadEnd, NonFiniteOutput
from ninfer_core.contract.events import Delta, Failed, FinishReason, GenerationStart
from ninfer_core.contract.requests import GenerationOptions, ResponseFormat
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.testing.engine_answers import expected_without_stop
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.fake_frontend import text_of
from ninfer_core.testing.fake_transactions import FakeConfig

PROMPT = [7, 9, 11, 13]
LAW = expected_without_stop(PROMPT, 1, 60)


def answer(tracked):
    """All that a consumer sees, in order, but for when it came."""
    said = []
    for event in tracked.events:
        if isinstance(event, GenerationStart):
            said.append(("start", event.prompt_tokens))
        elif isinstance(event, Delta):
            said += [("delta", event.text, event.token_ids, event.logprobs)]
        elif isinstance(event, Failed):
            partial = event.partial
            said.append((type(event.error), partial.text, partial.token_ids))
        else:
            one = event.result
            said.append((one.finish_reason, one.stop_match, one.text, one.token_ids, one.logprobs))
    return said


def whole(said):
    """An answer with its deltas put together: near the end of the context a round ahead may be
    shorter than the one that it stands for."""
    deltas = [one[1:] for one in said if one[0] == "delta"]
    text = "".join(text for text, _, _ in deltas)
    tokens = [token for _, ids, _ in deltas for token in ids]
    logprobs = [entry for *_, entries in deltas for entry in entries]
    return [*(one for one in said if one[0] != "delta"), text, tokens, logprobs]


def single(rounds_ahead, options, config=None, cancel_at=None, poison_at=None, **prompt):
    harness = EngineHarness(config, rounds_ahead=rounds_ahead)
    tracked = harness.submit(PROMPT, options, **prompt)
    while tracked.response.ends == 0:
        if len(tracked.record.tokens) == cancel_at and not tracked.record.cancel_requested:
            harness.cancel(tracked)
        if len(tracked.record.tokens) == poison_at:
            harness.program.nonfinite.add(tracked.record.ticket)
            poison_at = None
        harness.step()
    harness.run_dry()
    harness.consume(tracked)
    harness.check_released()
    return harness, answer(tracked)


ENDS = {
    "budget": ({"max_new_tokens": 9, "ignore_eos": True}, FinishReason.OUTPUT_LIMIT, 9),
    "context": ({"ignore_eos": True}, FinishReason.CONTEXT_CAPACITY, 60),
    "stop id": ({"ignore_eos": True, "stop_token_ids": (LAW[6],)}, FinishReason.STOP_TOKEN, 7),
    "stop string": (
        {"ignore_eos": True, "stop": (text_of(LAW[4:7]),)},
        FinishReason.STOP_STRING,
        7,
    ),
}


@pytest.mark.parametrize("burst", [1, 3])
@pytest.mark.parametrize("name", ENDS)
def test_every_way_to_end_is_the_same(name, burst):
    given, reason, count = ENDS[name]
    options = GenerationOptions(sampling=SamplingParams(seed=1), logprobs=0, **given)
    _, plain = single(0, options, FakeConfig(burst=burst))
    harness, early = single(1, options, FakeConfig(burst=burst))
    assert harness.program.journal.rounds_ahead > 0
    assert early == plain
    assert early[-1][0] is reason
    assert list(early[-1][3]) == LAW[:count]


@pytest.mark.parametrize("seed", [2, 9, 14])
def test_an_end_of_sequence_is_the_same(seed):
    law = expected_without_stop(PROMPT, seed, 60)
    count = law.index(0) + 1 if 0 in law else 60
    options = GenerationOptions(sampling=SamplingParams(seed=seed))
    _, plain = single(0, options)
    harness, early = single(1, options)
    assert early == plain
    assert list(early[-1][3]) == law[:count]
    assert harness.program.journal.void_rows == (0 in law[:59] and count > 1)


def test_a_cancel_keeps_what_was_committed_and_shows_what_was_held_back():
    options = GenerationOptions(sampling=SamplingParams(seed=1), ignore_eos=True)
    for count in range(1, 12):
        _, plain = single(0, options, cancel_at=count)
        _, early = single(1, options, cancel_at=count)
        assert early == plain
        assert early[-1][0] is FinishReason.CANCELLED
        assert list(early[-1][3]) == LAW[:count]


def test_a_nan_fails_the_row_and_not_the_one_behind_it():
    options = GenerationOptions(sampling=SamplingParams(seed=1), ignore_eos=True)
    _, plain = single(0, options, poison_at=5)
    harness, early = single(1, options, poison_at=5)
    assert early == plain
    assert early[-1] == (NonFiniteOutput, text_of(LAW[:5]), tuple(LAW[:5]))
    assert harness.program.journal.void_rows == 1


def test_a_dead_end_is_the_same():
    options = GenerationOptions(sampling=SamplingParams(seed=1), ignore_eos=True)
    form = ResponseFormat(kind="grammar", value="dead:5")
    answers = [single(n, options, response_format=form)[1] for n in (0, 1)]
    assert answers[0] == answers[1]
    assert answers[1][-1] == (ConstraintDeadEnd, text_of(LAW[:5]), tuple(LAW[:5]))


def drawn(rng):
    """A prompt, options and perhaps a constraint."""
    options = GenerationOptions(
        sampling=SamplingParams(seed=rng.randrange(50)),
        max_new_tokens=rng.choice([None, 1, 2, 5, 17]),
        stop=rng.choice([(), (), ("a",), ("qr", "x")]),
        stop_token_ids=rng.choice([(), (), (9, 30)]),
        ignore_eos=rng.random() < 0.6,
        logprobs=rng.choice([None, 0]),
        thinking_budget=rng.choice([None, None, 0, 3, 7]),
    )
    prompt = [rng.randrange(3, 64) for _ in range(rng.randrange(1, 20))]
    form = ResponseFormat(kind="grammar", value=rng.choice(["free", "dead:4"]))
    return prompt, options, {"response_format": form} if rng.random() < 0.2 else {}


def everything(seed, rounds_ahead):
    rng = random.Random(seed)
    burst = rng.choice([1, 1, 3])
    config = rng.choice(
        [
            FakeConfig(burst=burst),
            FakeConfig(page_tokens=1, pages=70, pause_kinds=frozenset({ResumeKind.REPLAY})),
            FakeConfig(pages=18, host=60, bind_steps=2, pause_steps=2),
        ]
    )
    harness = EngineHarness(config, max_pending=20, rounds_ahead=rounds_ahead)
    tracked = []
    for _ in range(rng.randrange(1, 8)):
        prompt, options, rest = drawn(rng)
        if config.burst > 1:  # where rounds begin shows in budgets of thought, and may differ
            options = GenerationOptions(
                sampling=options.sampling, stop=options.stop, ignore_eos=options.ignore_eos
            )
        tracked.append(harness.submit(prompt, options, **rest))
        harness.step(rng.randrange(4))
    harness.run_dry()
    for one in tracked:
        harness.consume(one)
    harness.check_released()
    return harness.program.journal, [whole(answer(one)) for one in tracked]


def test_many_requests_at_once_are_the_same():
    ahead = void = 0
    for seed in range(60):
        _, plain = everything(seed, 0)
        journal, early = everything(seed, 1)
        assert early == plain, seed
        ahead, void = ahead + journal.rounds_ahead, void + journal.void_rows
    assert ahead > 1000
    assert void > 50
