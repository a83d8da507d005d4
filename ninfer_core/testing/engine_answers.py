"""What a request to the harness gets, and what the fake model would say without a stop."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_core.contract.events import Finished, GenerationEvent, GenerationResult
from ninfer_core.contract.requests import GenerationOptions
from ninfer_core.testing.engine_harness import EngineHarness, Tracked
from ninfer_core.testing.fake_instance import FAKE_LIMITS
from ninfer_core.testing.fake_law import EMPTY_STATE, execute, next_token


def run(harness: EngineHarness, tracked: Tracked | None) -> GenerationEvent:
    """The last event of a submitted request, once nothing is left to do."""
    assert tracked is not None, "refused by a full engine"
    harness.run_dry()
    harness.consume(tracked)
    return tracked.events[-1]


def result_of(
    harness: EngineHarness, prompt: list[int], options: GenerationOptions, **rest: object
) -> GenerationResult:
    """Submit, run and demand a result."""
    end = run(harness, harness.submit(prompt, options, **rest))
    assert isinstance(end, Finished)
    return end.result


def expected_without_stop(prompt: Sequence[int], seed: int, count: int) -> list[int]:
    """The first ``count`` tokens after ``prompt``, going on behind a stop token."""
    state = execute(EMPTY_STATE, prompt)
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(next_token(state, seed, FAKE_LIMITS.vocab_rows))
        state = execute(state, tokens[-1:])
    return tokens
