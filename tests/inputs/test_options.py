"""Values of sampling and generation options that no engine may ever see."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.requests import GenerationOptions
from ninfer_core.contract.sampling import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -0.5),
        ("temperature", 1e-45),
        ("temperature", "hot"),
        ("top_k", 1 << 31),
        ("top_k", 1.5),
        ("top_p", 1.01),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-300),
        ("seed", 1.5),
        ("seed", 1 << 64),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {"1": 1.0}),
        ("logit_bias", {1.5: 1.0}),
    ],
)
def test_a_wrong_sampling_value_is_named(name, value):
    with pytest.raises(InvalidRequest, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 1.5),
        ("max_new_tokens", "4"),
        ("max_new_tokens", -1),
        ("min_tokens", 1.5),
        ("thinking_budget", 0.5),
        ("logprobs", 1.5),
        ("logprobs", 21),
        ("prompt_logprobs", 1.5),
        ("queue_timeout", math.nan),
        ("deadline", math.nan),
        ("deadline", -1.0),
        ("stop", "17"),
        ("stop", (5,)),
        ("stop", ("",)),
        ("stop_token_ids", (1.5,)),
        ("stop_token_ids", "ab"),
    ],
)
def test_a_wrong_generation_value_is_named(name, value):
    with pytest.raises(InvalidRequest, match=name) as caught:
        GenerationOptions(**{name: value})
    assert caught.value.param == name


def test_extremes_and_whole_numbers_of_other_kinds_are_taken():
    SamplingParams(
        temperature=1e-6,
        top_k=(1 << 31) - 1,
        repetition_penalty=0.01,
        seed=(1 << 64) - 1,
        logit_bias={np.int64(1): -100},
    )
    GenerationOptions(
        max_new_tokens=np.int64(3), deadline=math.inf, stop=("a",), stop_token_ids=(1,)
    )
