"""The option that takes back the permission to round activations, and what it counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ninfer_core.ops.activations import within
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.reference import OPS

WEIGHT = WeightMatrix("fp32", 4, 8, {"weight": torch.ones(4, 8)})
PERMITTED = replace(WEIGHT, allow_a8=True)


@pytest.fixture
def seen():
    """Weights as they reach the backend, which keeps what it is permitted for more than 4 rows."""
    return []


@pytest.fixture
def ops(seen):
    def prepare(weight):
        seen.append(weight)
        return replace(weight, allow_a8=weight.allow_a8 and weight.rows > 4)

    return replace(OPS, prepare_linear=prepare)


def test_permission_reaches_the_backend_and_what_it_keeps_is_counted(ops, seen) -> None:
    table, prepare = within(ops, "auto")
    assert (table.linear_prefill, table.prepare_linear) == (OPS.linear_prefill, prepare)
    assert prepare.details() == {"activations": {"asked": "auto", "matrices": 0, "a8": 0}}
    tall = replace(PERMITTED, rows=8)
    assert [table.prepare_linear(w).allow_a8 for w in (WEIGHT, PERMITTED, tall, tall)] == [
        False, False, True, True,
    ]  # fmt: skip
    assert seen == [WEIGHT, PERMITTED, tall, tall]
    assert prepare.details() == {"activations": {"asked": "auto", "matrices": 4, "a8": 2}}


def test_a16_takes_permission_back_before_the_backend_sees_it(ops, seen) -> None:
    table, prepare = within(ops, "a16")
    assert not table.prepare_linear(replace(PERMITTED, rows=8)).allow_a8
    assert [weight.allow_a8 for weight in seen] == [False]
    assert seen[0].planes is PERMITTED.planes
    assert prepare.details() == {"activations": {"asked": "a16", "matrices": 1, "a8": 0}}


def test_the_reference_rounds_no_activations() -> None:
    assert not OPS.prepare_linear(PERMITTED).allow_a8
