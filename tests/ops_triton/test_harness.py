"""The harness sees what it is there to see."""

from __future__ import annotations

import pytest
import torch
from harness import (
    Guarded,
    GuardedAllocations,
    assert_close_to_oracle,
    assert_sequences_close,
    guarded,
    poisoned,
    recorded_launches,
    relative_error,
)

from ninfer_ops_triton import launch


def test_writes_around_a_tensor_are_seen():
    inside = guarded(torch.arange(6.0).view(2, 3))
    assert inside.tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    inside.tensor.fill_(9)
    inside.check()
    for offset in (-1, 6):
        wild = Guarded((2, 3), torch.float32, "cpu")
        wild.buffer.view(torch.float32)[1024 + offset] = 0
        with pytest.raises(AssertionError, match="overwritten"):
            wild.check()


def test_allocations_are_poisoned_and_watched():
    with GuardedAllocations() as mode:
        one = torch.empty(3, 2)
        two = torch.empty_like(one)
        three = one.new_empty((4,), dtype=torch.int32)
    assert one.isnan().all()
    assert two.isnan().all()
    assert three.unique().tolist() == [0x7F7F7F7F]
    assert len(mode.made) == 3
    assert poisoned((2,), torch.bfloat16, "cpu").isnan().all()

    def overrun():
        with GuardedAllocations():
            torch.empty(4).as_strided((5,), (1,)).fill_(0)

    with pytest.raises(AssertionError, match="after"):
        overrun()


def test_accuracy_is_held_against_the_oracle():
    oracle = torch.randn(5, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    good = oracle.bfloat16()
    assert_close_to_oracle(good, oracle)
    assert relative_error(good, oracle) == pytest.approx(2**-9 / 3**0.5, rel=0.5)
    with pytest.raises(AssertionError, match="relative error"):
        assert_close_to_oracle((oracle * 1.01).bfloat16(), oracle)
    spoiled = good.clone()
    spoiled[2, 7] += 0.2
    with pytest.raises(AssertionError, match="an element is off"):
        assert_close_to_oracle(spoiled, oracle, baseline=good * 1.5)
    for broken in (float("nan"), float("inf")):
        spoiled[2, 7] = broken
        with pytest.raises(AssertionError, match="not finite"):
            assert_close_to_oracle(spoiled, oracle)
    masked = oracle.clone()
    masked[:, 290:] = -torch.inf
    assert_close_to_oracle(masked.bfloat16(), masked)
    with pytest.raises(AssertionError):
        assert_close_to_oracle(good, masked)


def test_a_sequence_does_not_hide_another():
    oracle = torch.randn(4, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    oracle[2:] /= 100
    oracle[3] = 0
    starts, live = torch.tensor([0, 9000]), torch.tensor([2, 1])
    good = oracle.bfloat16()
    assert_sequences_close(good, oracle, good, starts, live)
    spoiled = good.clone()
    spoiled[2] *= 1.125
    assert_close_to_oracle(spoiled[:2], oracle[:2])
    assert relative_error(spoiled, oracle) < 2**-8
    with pytest.raises(AssertionError, match=r"^sequence 1 from 9000: relative error 0.12\d"):
        assert_sequences_close(spoiled, oracle, good, starts, live)
    spoiled = good.clone()
    spoiled[3] = 1
    with pytest.raises(AssertionError, match="sequence 1 from 9000: rows that are not live"):
        assert_sequences_close(spoiled, oracle, good, starts, live)


def test_a_dry_run_records_and_does_not_run(operands):
    def kernel():
        raise AssertionError("ran")

    x = torch.empty(64, device="meta", dtype=torch.bfloat16)
    with launch.dry_run(), recorded_launches() as launches:
        for length in (64, 128, 33, 1, 2**40):
            launch.launch(kernel, (2,), x, x[1:], length, 0.5, None, warps=8, BLOCK=16)
        assert launch.multiprocessors() == 132
    options = {"BLOCK": 16, "num_warps": 8, "num_stages": 2, "INTERPRET": launch.INTERPRET}
    assert len(launches) == 4
    assert launches[0].args == (
        ("*bf16", True), ("*bf16", False), ("i32", True), ("fp32", False), ("constexpr", None),
    )  # fmt: skip
    assert [entry.args[2] for entry in launches[1:]] == [
        ("i32", False), ("constexpr", 1), ("i64", True),
    ]  # fmt: skip
    assert dict(launches[0].options) == options | {"PDL": False}
    assert launch.observers == []
