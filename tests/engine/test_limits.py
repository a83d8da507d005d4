"""Where an output ends by its length: budgets, the context's room, zero tokens."""

from __future__ import annotations

import pytest

from ninfer_core.contract.events import Finished, FinishReason, GenerationStart
from ninfer_core.testing.engine_answers import expected_without_stop, result_of, run
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.fake_law import CLOSE_TOKENS
from ninfer_core.testing.fake_transactions import FakeConfig

PROMPT = [7, 9, 11, 13, 8, 6, 5, 12, 10, 14]


@pytest.mark.parametrize("burst", [1, 4])
@pytest.mark.parametrize("limit", [1, 2, 5, 11])
def test_the_budget_cuts_what_a_round_produced(options, burst, limit):
    harness = EngineHarness(FakeConfig(burst=burst))
    result = result_of(harness, PROMPT, options(limit, ignore_eos=True))
    assert result.token_ids == tuple(expected_without_stop(PROMPT, 1, limit))
    assert result.finish_reason is FinishReason.OUTPUT_LIMIT
    if burst > 1 and limit == 11:
        assert sum(result.timings.accepted) == 11 - 1 - harness.core.stats().decode_rounds


@pytest.mark.parametrize("burst", [1, 3])
def test_no_limit_fills_the_context(options, burst):
    harness = EngineHarness(FakeConfig(burst=burst))
    result = result_of(harness, PROMPT, options(None, ignore_eos=True))
    assert len(result.token_ids) == 64 - 10
    assert result.finish_reason is FinishReason.CONTEXT_CAPACITY
    assert result.notes == ()


def test_a_limit_beyond_the_context_is_clamped_and_said(options):
    harness = EngineHarness()
    tracked = harness.submit(PROMPT, options(1000, ignore_eos=True))
    result = run(harness, tracked).result
    assert len(result.token_ids) == 54
    assert result.finish_reason is FinishReason.CONTEXT_CAPACITY
    assert result.notes == tracked.events[0].notes
    assert "1000" in result.notes[0]
    assert "54" in result.notes[0]


@pytest.mark.parametrize("asked", [55, 1 << 31, 1 << 70])
def test_a_least_number_of_tokens_beyond_the_context_is_clamped_and_said(options, asked):
    """No number that is asked for reaches a Program, which reckons in int32."""
    harness = EngineHarness()
    tracked = harness.submit(PROMPT, options(None, min_tokens=asked))
    assert tracked.record.rules.min_tokens == 54
    result = run(harness, tracked).result
    assert len(result.token_ids) == 54
    assert result.finish_reason is FinishReason.CONTEXT_CAPACITY
    assert result.notes == (f"min_tokens {asked} was clamped to 54, what the context has left",)


def test_a_least_number_of_tokens_within_the_context_stays_as_it_is(options):
    tracked = EngineHarness().submit(PROMPT, options(None, min_tokens=54))
    assert tracked.record.rules.min_tokens == 54
    assert tracked.record.notes == ()


def test_a_limit_of_exactly_the_room_is_a_limit(options):
    result = result_of(EngineHarness(), PROMPT, options(54, ignore_eos=True))
    assert result.finish_reason is FinishReason.OUTPUT_LIMIT


def test_zero_tokens_prefill_nothing_and_take_no_place(options):
    harness = EngineHarness(max_pending=0)
    for _ in range(3):
        harness.submit(PROMPT, options(40))
    assert harness.gate.count == harness.gate.limit
    tracked = harness.submit(PROMPT, options(0))
    harness.step()
    harness.consume(tracked)
    assert [type(event) for event in tracked.events] == [GenerationStart, Finished]
    result = tracked.events[-1].result
    assert result.finish_reason is FinishReason.OUTPUT_LIMIT
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (10, 0)
    assert tracked.record.ticket not in harness.program.journal.chunk_tickets
    assert harness.gate.count == harness.gate.limit
    harness.run_dry()


def test_zero_tokens_with_scores_prefill_and_end_after_the_last_row(options):
    harness = EngineHarness()
    result = result_of(harness, PROMPT, options(0, prompt_logprobs=0))
    assert result.prompt_logprobs[0] is None
    assert [entry.token_id for entry in result.prompt_logprobs[1:]] == PROMPT[1:]
    assert [entry.logprob for entry in result.prompt_logprobs[1:]] == [
        -position / 8 for position in range(1, 10)
    ]
    assert result.token_ids == ()
    assert result.finish_reason is FinishReason.OUTPUT_LIMIT
    assert harness.program.journal.decode_rows == []


def test_a_full_context_leaves_room_for_nothing(options):
    result = result_of(EngineHarness(), [5] * 64, options(7))
    assert (result.token_ids, result.finish_reason) == ((), FinishReason.CONTEXT_CAPACITY)
    assert len(result.notes) == 1


def test_forced_tokens_count_against_the_budget(options):
    harness = EngineHarness()
    result = result_of(harness, PROMPT, options(4, ignore_eos=True, thinking_budget=3))
    assert result.token_ids == (*expected_without_stop(PROMPT, 1, 3), CLOSE_TOKENS[0])
    assert result.finish_reason is FinishReason.OUTPUT_LIMIT
