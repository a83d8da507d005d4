"""Options of a start that contradict themselves."""

from __future__ import annotations

import math

import pytest

from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.instance import Purpose
from ninfer_core.engine.start_options import InvalidOption, check_options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_gap_ms": 0}, "max_gap_ms is 0; it must be above 0"),
        ({"max_gap_ms": math.nan}, "max_gap_ms is nan; it must be above 0"),
        ({"max_gap_ms": 9, "max_concurrency": 1}, "max_concurrency is 1"),
        ({"activations": "a8"}, r"activations is 'a8' \(give auto or a16\)"),
        ({"activations": "A16"}, "activations is 'A16'"),
        ({"max_gap_ms": 9, "purpose": Purpose.CAUSAL_SCORING}, "max_gap_ms is for generation"),
    ],
)
def test_wrong_options_are_named(options, said) -> None:
    with pytest.raises(InvalidOption, match=said):
        check_options(EngineOptions(**{"max_concurrency": 2, **options}))
