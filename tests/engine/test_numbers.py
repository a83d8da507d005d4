"""Numbers of any kind in a request's options reach the engine as Python's own, or not at all."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.requests import GenerationOptions
from ninfer_core.contract.sampling import SamplingParams


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("temperature", Fraction(1, 2), 0.5),
        ("temperature", 1, 1.0),
        ("top_p", np.float32(0.5), 0.5),
        ("min_p", False, 0.0),
        ("repetition_penalty", np.int8(2), 2.0),
        ("top_k", np.uint8(200), 200),
        ("top_k", True, 1),
        ("seed", np.uint64((1 << 64) - 1), (1 << 64) - 1),
        ("seed", np.int64(7), 7),
        ("seed", None, None),
    ],
)
def test_the_sampling_law_is_made_of_plain_numbers(name, given, expected):
    found = getattr(SamplingParams(**{name: given}), name)
    assert (type(found), found) == (type(expected), expected)


def test_biases_are_plain_numbers():
    given = {np.int64(3): 1, True: Fraction(1, 2), 4: np.float16(-2)}
    found = SamplingParams(logit_bias=given).logit_bias
    assert found == {3: 1.0, 1: 0.5, 4: -2.0}
    assert {(type(token), type(bias)) for token, bias in found.items()} == {(int, float)}


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("max_new_tokens", np.uint8(250), 250),
        ("min_tokens", np.uint8(250), 250),
        ("thinking_budget", True, 1),
        ("logprobs", True, 1),
        ("prompt_logprobs", np.int16(3), 3),
        ("deadline", 3, 3.0),
        ("queue_timeout", Fraction(3, 2), 1.5),
        ("queue_timeout", None, None),
    ],
)
def test_limits_are_plain_numbers(name, given, expected):
    found = getattr(GenerationOptions(**{name: given}), name)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize("value", ["x", Decimal(5), float("nan"), -1, 1j])
@pytest.mark.parametrize("name", ["deadline", "queue_timeout"])
def test_what_is_no_number_of_seconds_is_refused(name, value):
    with pytest.raises(InvalidRequest, match=name):
        GenerationOptions(**{name: value})
