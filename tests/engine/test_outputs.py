"""What a request gets: exact tokens, scores, stops, forced tokens, reuse, errors of its own."""

from __future__ import annotations

import pytest

from ninfer_core.contract.errors import (
    ConstraintDeadEnd,
    ContextLengthExceeded,
    Infeasible,
    InvalidPrompt,
    InvalidRequest,
    NonFiniteOutput,
)
from ninfer_core.contract.events import (
    Delta,
    Failed,
    Finished,
    FinishReason,
    GenerationStart,
    ReuseReason,
)
from ninfer_core.contract.requests import (
    CacheMode,
    CacheRequest,
    ConsumerMode,
    PromptInput,
    ResponseFormat,
)
from ninfer_core.testing.engine_answers import expected_without_stop, result_of, run
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.fake_frontend import text_of
from ninfer_core.testing.fake_instance import KeepPolicy
from ninfer_core.testing.fake_law import CLOSE_TOKENS, continuation
from ninfer_core.testing.fake_transactions import FakeConfig

PROMPT = [7, 9, 11, 13, 8, 6, 5, 12, 10, 14]


def test_tokens_text_and_events_are_the_models(options):
    harness = EngineHarness()
    tracked = harness.submit(PROMPT, options(12, seed=4, logprobs=0))
    result = run(harness, tracked).result
    expected = continuation(PROMPT, 4, 64, 12)
    assert len(expected) == 12
    assert result.token_ids == tuple(expected)
    assert result.text == text_of(expected)
    assert result.finish_reason is FinishReason.OUTPUT_LIMIT
    assert [entry.token_id for entry in result.logprobs] == expected
    start, *deltas, end = tracked.events
    assert start == GenerationStart(10, 0, ReuseReason.DISABLED, ())
    assert all(isinstance(delta, Delta) for delta in deltas)
    assert "".join(delta.text for delta in deltas) == result.text
    assert [token for delta in deltas for token in delta.token_ids] == expected
    assert end.result is result
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (10, 12)


def test_aggregate_consumers_get_start_and_end_only(options):
    harness = EngineHarness()
    tracked = harness.submit(PROMPT, options(6, consumer=ConsumerMode.AGGREGATE))
    run(harness, tracked)
    assert [type(event) for event in tracked.events] == [GenerationStart, Finished]
    assert tracked.events[-1].result.text == text_of(continuation(PROMPT, 1, 64, 6))


def test_a_batch_does_not_change_anybodys_tokens(options):
    harness = EngineHarness()
    tracked = [harness.submit([seed + 3, *PROMPT], options(9, seed=seed)) for seed in range(6)]
    harness.run_dry()
    for seed, one in enumerate(tracked):
        expected = continuation([seed + 3, *PROMPT], seed, 64, 9)
        assert one.response.terminal.result.token_ids == tuple(expected)
    assert max(harness.program.journal.decode_rows) == 3


def test_scores_come_with_output_too(options):
    result = result_of(EngineHarness(), PROMPT, options(4, prompt_logprobs=0))
    assert len(result.prompt_logprobs) == 10
    assert result.token_ids == tuple(continuation(PROMPT, 1, 64, 4))


def test_stop_strings_end_the_output_and_say_which(options):
    expected = continuation(PROMPT, 4, 64, 12)
    stop = text_of(expected[3:5])
    result = result_of(EngineHarness(), PROMPT, options(12, seed=4, stop=(stop,)))
    assert result.finish_reason is FinishReason.STOP_STRING
    assert result.stop_match == stop
    assert result.token_ids == tuple(expected[:5])


@pytest.mark.parametrize("burst", [1, 4])
def test_a_stop_inside_a_round_accepts_a_prefix(options, burst):
    expected = expected_without_stop(PROMPT, 1, 9)
    harness = EngineHarness(FakeConfig(burst=burst))
    result = result_of(harness, PROMPT, options(20, ignore_eos=True, stop_token_ids=(expected[6],)))
    first = expected.index(expected[6])
    assert result.token_ids == tuple(expected[: first + 1])
    assert result.finish_reason is FinishReason.STOP_TOKEN
    assert result.stop_match == expected[6]


def test_min_tokens_suppresses_stops(options):
    prompt, seed = next(
        ([first, 4, 5], seed)
        for first in range(3, 60)
        for seed in range(20)
        if len(continuation([first, 4, 5], seed, 64, 6)) < 4
    )
    result = result_of(EngineHarness(), prompt, options(8, seed=seed, min_tokens=6))
    assert len(result.token_ids) >= 6


def test_forced_tokens_are_output_and_the_model_goes_on_after_them(options):
    harness = EngineHarness()
    result = result_of(harness, PROMPT, options(9, ignore_eos=True, thinking_budget=3))
    free = expected_without_stop(PROMPT, 1, 3)
    after = expected_without_stop([*PROMPT, *free, *CLOSE_TOKENS], 1, 4)
    assert result.token_ids == (*free, *CLOSE_TOKENS, *after)
    assert harness.core.stats().control_rounds == 1


def test_a_missing_seed_is_drawn_at_submit(options):
    harness = EngineHarness()
    result = result_of(harness, PROMPT, options(5, seed=None, ignore_eos=True))
    assert result.token_ids == tuple(expected_without_stop(PROMPT, 99, 5))


@pytest.mark.parametrize(
    ("prompt", "rest", "error", "word"),
    [
        ([], {}, InvalidPrompt, "empty"),
        ([5] * 65, {}, ContextLengthExceeded, "64"),
        (PROMPT, {"min_tokens": 9}, InvalidRequest, "min_tokens"),
        (PROMPT, {"stop_token_ids": (64,)}, InvalidRequest, "stop_token_ids"),
    ],
)
def test_bad_requests_are_refused_at_submit_and_hold_nothing(options, prompt, rest, error, word):
    harness = EngineHarness()
    with pytest.raises(error, match=word):
        harness.submit(prompt, options(5, **rest))
    assert harness.gate.count == 0
    assert harness.step().value == "idle"


def test_a_dead_end_fails_its_row_alone(options):
    harness = EngineHarness()
    form = ResponseFormat(kind="grammar", value="dead:2")
    doomed = harness.submit(PROMPT, options(9, ignore_eos=True), response_format=form)
    other = harness.submit(PROMPT, options(9, ignore_eos=True))
    end = run(harness, doomed)
    assert isinstance(end, Failed)
    assert isinstance(end.error, ConstraintDeadEnd)
    assert end.partial.token_ids == tuple(expected_without_stop(PROMPT, 1, 2))
    assert len(run(harness, other).result.token_ids) == 9


@pytest.mark.parametrize("after_steps", [0, 1, 3])
def test_a_nonfinite_row_fails_alone_and_is_never_kept(options, after_steps):
    harness = EngineHarness(policy=KeepPolicy())
    doomed = harness.submit(PROMPT, options(20, ignore_eos=True))
    harness.step(after_steps)
    harness.program.nonfinite.add(1)
    end = run(harness, doomed)
    assert isinstance(end.error, NonFiniteOutput)
    assert harness.program.contexts.checkpoints == {}
    assert len(result_of(harness, PROMPT, options(5, ignore_eos=True)).token_ids) == 5


def test_a_prompt_that_can_never_fit_is_infeasible(options):
    harness = EngineHarness(FakeConfig(pages=2))
    end = run(harness, harness.submit(PROMPT, options(3)))
    assert isinstance(end.error, Infeasible)
    assert "3 main" in str(end.error)


def test_an_output_that_outgrows_everything_is_infeasible_not_a_hang(options):
    harness = EngineHarness(FakeConfig(pages=4))
    end = run(harness, harness.submit(PROMPT, options(20, ignore_eos=True)))
    assert isinstance(end.error, Infeasible)
    assert len(end.partial.token_ids) == 7


def test_an_adopted_end_is_reported_and_changes_no_token(options):
    harness = EngineHarness(policy=KeepPolicy())
    first = result_of(harness, PROMPT, options(5, ignore_eos=True))
    longer = [*PROMPT, *first.token_ids, 20, 21]
    tracked = harness.submit(longer, options(5, ignore_eos=True))
    second = run(harness, tracked).result
    assert second.token_ids == tuple(expected_without_stop(longer, 1, 5))
    assert tracked.events[0].reused_tokens == 14
    assert tracked.events[0].reuse_reason is ReuseReason.SHARED_CHECKPOINT
    assert second.usage.cached_tokens == 14
    assert harness.program.journal.prefilled_tokens == 10 + 3


@pytest.mark.parametrize(
    ("rest", "cache", "reason"),
    [
        ({"prompt_logprobs": 0}, CacheRequest(), ReuseReason.LIMITED_BY_SCORING),
        ({}, CacheRequest(mode=CacheMode.DISABLED), ReuseReason.DISABLED),
        ({}, CacheRequest(salt="other"), ReuseReason.NO_MATCH),
        ({}, CacheRequest(session_key="me"), ReuseReason.PRIVATE_CHECKPOINT),
    ],
)
def test_why_a_prompt_was_or_was_not_reused(options, rest, cache, reason):
    harness = EngineHarness(policy=KeepPolicy())
    key = CacheRequest(session_key="me")
    first = result_of(harness, PROMPT, options(5, ignore_eos=True), cache=key)
    longer = [*PROMPT, *first.token_ids, 20]
    tracked = harness.submit(longer, options(3, **rest), cache=cache)
    run(harness, tracked)
    assert tracked.events[0].reuse_reason is reason
    assert bool(tracked.events[0].reused_tokens) == (reason is ReuseReason.PRIVATE_CHECKPOINT)


def test_the_prompt_may_come_prepared(options):
    harness = EngineHarness()
    prepared = harness.frontend.prepare(PromptInput(token_ids=PROMPT))
    handle = harness.ingress.submit(prepared, options(3, ignore_eos=True))
    handle._record.response.record = handle._record
    while harness.core.step().value != "idle":
        continue
    assert handle.result(0).token_ids == tuple(expected_without_stop(PROMPT, 1, 3))
