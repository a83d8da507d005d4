"""Shared by the engine tests: requests in one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ninfer_core.contract.requests import GenerationOptions
from ninfer_core.contract.sampling import SamplingParams


@pytest.fixture
def options() -> Callable[..., GenerationOptions]:
    """Options with a seed, so that the fake model's answer is known."""

    def make(max_new_tokens: int | None = 5, *, seed: int = 1, **rest: object) -> GenerationOptions:
        return GenerationOptions(
            sampling=SamplingParams(seed=seed), max_new_tokens=max_new_tokens, **rest
        )

    return make
