"""A round that turns out longer than what may come before forced tokens is cut there, and nothing
else changes."""

from __future__ import annotations

import pytest

from ninfer_core.contract.requests import GenerationOptions
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.testing.engine_answers import expected_without_stop
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.fake_frontend import FakeSession
from ninfer_core.testing.fake_law import CLOSE_TOKENS
from ninfer_core.testing.fake_transactions import FakeConfig

PROMPT = [7, 9, 11, 13]


def answered(burst: int, ahead: int, budget: int, count: int):
    harness = EngineHarness(FakeConfig(burst=burst), rounds_ahead=ahead)
    options = GenerationOptions(
        sampling=SamplingParams(seed=1),
        max_new_tokens=count,
        thinking_budget=budget,
        ignore_eos=True,
        logprobs=0,
    )
    tracked = harness.submit(PROMPT, options)
    harness.run_dry()
    harness.check_released()
    result = tracked.response.terminal.result
    return result.token_ids, result.logprobs, result.text, result.finish_reason


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("burst", [2, 4, 7])
def test_a_budget_that_no_permit_knew_of(burst, ahead, monkeypatch) -> None:
    """The session says beforehand that nothing will be forced, as where a thought has yet to
    open."""
    monkeypatch.setattr(FakeSession, "thinking_room", None)
    monkeypatch.setattr(FakeSession, "cuts", True)
    for budget in range(2, 9):
        for count in (budget, budget + 1, 14):
            plain, made = (answered(n, ahead, budget, count) for n in (1, burst))
            assert made == plain, (budget, count)
            tokens = list(made[0])
            assert tokens[:budget] == expected_without_stop(PROMPT, 1, budget)
            assert tokens[budget:][: len(CLOSE_TOKENS)] == list(CLOSE_TOKENS)[: count - budget]
            assert len(tokens) == count
