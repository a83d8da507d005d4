"""What a row leaves when it ends in a round behind which another was launched: its next turn starts
from there, and must not show that."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.events import FinishReason
from ninfer_core.contract.requests import CacheMode, CacheRequest, GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.engine.units import UnitRunner

DEVICE = "cuda:0"
WAIT = 120.0
SYSTEM = {"role": "system", "content": "You answer in one short line. " * 12}
PROMPTS = [
    [SYSTEM, {"role": "user", "content": text}] for text in ("12 + 29", "Copy: 8 15 3", "91 - 4")
]
LIMIT = 40
"""More than an answer takes."""


def options(**changes: Any) -> GenerationOptions:
    settings = {"sampling": SamplingParams(temperature=0.0), "max_new_tokens": LIMIT, "logprobs": 5}
    return GenerationOptions(**(settings | changes))


def never(runner: UnitRunner, units: object) -> None:
    """Instead of a launch ahead."""
    runner._permits.launched()


def let_pass(engine: Engine) -> None:
    """Until the round behind the last answer is over too: what a row leaves is kept only then."""
    unkept = PromptInput(token_ids=[9, 8], cache=CacheRequest(mode=CacheMode.DISABLED))
    engine.submit(unkept, options(max_new_tokens=3, ignore_eos=True)).result(WAIT)


def evidence(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of each way to end: how it ended, and the tokens and log-probabilities that follow it."""
    if not ahead:
        monkeypatch.setattr(UnitRunner, "launch_ahead", never)
    found = {}
    settings = EngineOptions(
        devices=(DEVICE,), max_concurrency=4, max_context=512, cache_policy="reuse"
    )
    with Engine.open("demo", settings) as engine:
        prepared = [engine.prepare(PromptInput(messages=prompt)) for prompt in PROMPTS]
        for index, prompt in enumerate(prepared):
            ids = list(prompt.token_ids)
            whole = engine.submit(PromptInput(token_ids=ids), options()).result(WAIT)
            third = whole.token_ids[2]
            ways = {
                "eos": options(),
                "length": options(max_new_tokens=5, ignore_eos=True),
                "stop id": options(stop_token_ids=(third,)),
                "stop string": options(stop=(engine.detokenize([third]),)),
            }
            # Beside a row that goes on, so that a round is in flight when the other one ends.
            company = engine.submit(
                PromptInput(token_ids=ids[::-1]), options(max_new_tokens=300, ignore_eos=True)
            )
            for name, way in ways.items():
                first = engine.submit(PromptInput(token_ids=ids), way).result(WAIT)
                let_pass(engine)
                again = PromptInput(token_ids=[*ids, *first.token_ids, 5, 6, 7])
                after = engine.submit(again, options(max_new_tokens=8, ignore_eos=True))
                after = after.result(WAIT)
                found[f"{index} {name}"] = (
                    first.finish_reason, first.token_ids, after.usage.cached_tokens,
                    after.token_ids, after.logprobs,
                )  # fmt: skip
            company.cancel()
    return found


def test_the_state_of_an_ended_row_does_not_show_that_a_round_was_ahead(monkeypatch) -> None:
    ahead, plain = evidence(True, monkeypatch), evidence(False, monkeypatch)
    assert ahead == plain
    reasons = {found[0] for found in ahead.values()}
    assert {FinishReason.STOP_TOKEN, FinishReason.STOP_STRING, FinishReason.OUTPUT_LIMIT} <= reasons
    resumed = [found[2] > 0 for found in ahead.values()]
    assert sum(resumed) >= len(resumed) / 2, "too few turns started from a kept end"
