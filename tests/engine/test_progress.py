"""How far a prompt is read, said after each of its chunks to whoever asked."""

from __future__ import annotations

import pytest

from ninfer_core.contract.events import Delta, Finished, GenerationStart, PromptProgress
from ninfer_core.contract.requests import ConsumerMode
from ninfer_core.testing.engine_harness import FAKE_LIMITS, EngineHarness

CHUNK = FAKE_LIMITS.prefill_chunk
PROMPT = list(range(5, 5 + 2 * CHUNK + 1))
"""Three chunks: two whole ones and a last one of a single token."""


def events_of(options):
    harness = EngineHarness()
    tracked = harness.submit(PROMPT, options)
    harness.run_dry()
    return list(tracked.handle)


def test_every_chunk_is_said_before_the_first_delta(options):
    start, *said, delta, end = events_of(options(1, progress=True))
    total = len(PROMPT)
    assert isinstance(start, GenerationStart)
    assert said == [
        PromptProgress(done=done, total=total, cached=0) for done in (CHUNK, 2 * CHUNK, total)
    ]
    assert isinstance(delta, Delta)
    assert isinstance(end, Finished)


def test_a_prompt_that_is_only_scored_is_said_to_its_end(options):
    said = events_of(options(0, prompt_logprobs=0, progress=True))[1:-1]
    assert [event.done for event in said] == [CHUNK, 2 * CHUNK, len(PROMPT)]


@pytest.mark.parametrize(
    "rest", [{"progress": False}, {"progress": True, "consumer": ConsumerMode.AGGREGATE}]
)
def test_nobody_hears_of_it_unasked(options, rest):
    events = events_of(options(3, **rest))
    assert not any(isinstance(event, PromptProgress) for event in events)
