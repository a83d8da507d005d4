"""Whether drafts are accepted at all: tried at start, on texts that most models continue alike.

A drafter of another model, or one that reads the wrong layers, gives right answers and no error: it
only costs time. Its sizes may fit, so that nothing but its acceptance tells.
"""

from __future__ import annotations

import logging
from typing import Final

from ninfer_core.contract.errors import RequestError
from ninfer_core.contract.events import GenerationResult
from ninfer_core.contract.requests import (
    CacheMode,
    CacheRequest,
    ConsumerMode,
    GenerationOptions,
    PromptInput,
)
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.engine.ingress import Ingress
from ninfer_core.engine.warm_up import PATIENCE

TEXTS: Final = (
    "Count from 1 to 20, one number per line.",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10. Repeat.",
    "Complete this function:\n\ndef add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n",
)
TOKENS: Final = 48
LEAST_LENGTH: Final = 1.4
"""Tokens of a round that verifies drafts, on average, one of them the target's own, below which a
drafter is suspect. The demo model's drafters have 1.8 to 2.8 here; 1.2 to 1.4 with their taps one
layer too high or without the hidden row, and 1.0 with the rows of their first matrix moved."""

LEAST_ROUNDS: Final = 8
"""Fewer say nothing, as where drafts were found to cost too much."""

_log: Final = logging.getLogger("ninfer.engine")


def try_drafts(ingress: Ingress) -> float | None:
    """Tokens of a round that verifies drafts, on average over greedy answers; None for a model that
    cannot read the texts or has no use for drafts."""
    rounds = tokens = 0
    for text in TEXTS:
        prompt = PromptInput(
            messages=[{"role": "user", "content": text}],
            cache=CacheRequest(mode=CacheMode.DISABLED),
        )
        try:
            result = _answered(ingress, prompt)
        except RequestError:
            return None
        # A round that verifies drafts verifies a first one.
        rounds += sum(result.timings.drafted[:1])
        tokens += sum(result.timings.accepted)
    return 1 + tokens / rounds if rounds >= LEAST_ROUNDS else None


def judge_drafts(name: str, length: float | None) -> None:
    """Log a warning where drafts of backend ``name`` are of no use."""
    if length is not None and length < LEAST_LENGTH:
        _log.warning(
            "rounds that verify drafts of %s gave %.2f tokens on average in a trial at start, "
            "where plain ones give 1: check that the drafter is this target's own and that its "
            "config.json names the layers that it was trained on, or start without --spec",
            name,
            length,
        )


def _answered(ingress: Ingress, prompt: PromptInput) -> GenerationResult:
    options = GenerationOptions(
        sampling=SamplingParams(temperature=0.0, seed=0),
        max_new_tokens=TOKENS,
        ignore_eos=True,
        queue_timeout=PATIENCE,
        consumer=ConsumerMode.AGGREGATE,
    )
    handle = ingress.submit(prompt, options)
    try:
        return handle.result()
    finally:
        handle.close()
