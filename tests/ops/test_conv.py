"""The causal convolution in its four forms."""

from __future__ import annotations

import pytest
import torch

CHANNELS = 192


def convolved(history, x, weight):
    """SiLU outputs of one sequence in fp64, tap by tap."""
    window = torch.cat([history, x]).double()
    out = torch.zeros(x.shape[0], x.shape[1], dtype=torch.float64)
    for row in range(x.shape[0]):
        for tap in range(4):
            out[row] += window[row + tap] * weight[tap].double()
    return out / (1 + (-out).exp())


@pytest.fixture
def weight(operands):
    return operands.normal(4, CHANNELS)


@pytest.fixture
def history(operands):
    return operands.normal(5, 3, CHANNELS)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 65])
def test_chunk(ops, operands, weight, history, count):
    x, before = operands.normal(count, CHANNELS), history.clone()
    result = ops.causal_conv_chunk(x, weight, history, torch.tensor([3]))
    torch.testing.assert_close(result.double(), convolved(before[3], x, weight), rtol=0, atol=2e-6)
    assert torch.equal(history[3], torch.cat([before[3], x])[-3:])
    assert torch.equal(history[[0, 1, 2, 4]], before[[0, 1, 2, 4]])


def test_chunk_splits_do_not_matter(ops, operands, weight, history):
    x, slot, split = operands.normal(70, CHANNELS), torch.tensor([1]), history.clone()
    whole = ops.causal_conv_chunk(x, weight, history, slot)
    parts = [ops.causal_conv_chunk(part, weight, split, slot) for part in x.split([2, 1, 64, 3])]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(split, history)


def test_step_advances_each_slot(ops, operands, weight, history):
    x, before, slots = operands.normal(3, CHANNELS), history.clone(), [4, 0, 2]
    result = ops.causal_conv_step(x, weight, history, *[torch.tensor(slots)] * 2)
    for row, slot in enumerate(slots):
        expected = convolved(before[slot], x[row : row + 1], weight)
        torch.testing.assert_close(result[row : row + 1].double(), expected, rtol=0, atol=2e-6)
        assert torch.equal(history[slot], torch.cat([before[slot], x[row : row + 1]])[-3:])
    assert torch.equal(history[[1, 3]], before[[1, 3]])


def test_a_step_into_another_slot_leaves_its_source(ops, operands, weight, history):
    x, kept, inplace = operands.normal(2, CHANNELS), history.clone(), history.clone()
    slots, targets = torch.tensor([4, 0]), torch.tensor([1, 0])
    result = ops.causal_conv_step(x, weight, history, slots, targets)
    assert torch.equal(result, ops.causal_conv_step(x, weight, inplace, slots, slots))
    assert torch.equal(history[[1, 0]], inplace[[4, 0]])
    assert torch.equal(history[[2, 3, 4]], kept[[2, 3, 4]])


def test_verify_and_fold_are_steps(ops, operands, weight, history, records):
    width, slots, counts = 4, torch.tensor([4, 1, 2, 0]), [0, 1, 3, 4]
    x = operands.normal(4 * width, CHANNELS)
    kept, stepped = history.clone(), history.clone()
    recorded = records(5, 6, channels=CHANNELS)
    result = ops.causal_conv_verify(x, weight, history, slots, recorded)
    assert torch.equal(history, kept)
    assert torch.equal(recorded.inputs[slots, :width], x.view(4, width, CHANNELS))
    assert recorded.inputs[:, width:].isnan().all()
    assert recorded.inputs[3].isnan().all()
    for sequence, slot in enumerate(slots.tolist()):
        for row in range(width):
            place = sequence * width + row
            single = x[place : place + 1]
            step = ops.causal_conv_step(single, weight, stepped, *[torch.tensor([slot])] * 2)
            assert torch.equal(step[0], result[place])
            if row + 1 == counts[sequence]:
                kept[slot] = stepped[slot]
        recorded.inputs[slot, counts[sequence] :] = float("nan")
    ops.causal_conv_fold(history, slots, recorded, torch.tensor(counts, dtype=torch.int32))
    assert torch.equal(history, kept)


def test_a_fold_into_another_slot_leaves_its_source(ops, operands, weight, history, records):
    slots, targets = torch.tensor([4, 0, 3]), torch.tensor([1, 2, 3])
    recorded = records(5, 4, channels=CHANNELS)
    ops.causal_conv_verify(operands.normal(9, CHANNELS), weight, history, slots, recorded)
    counts, before, inplace = torch.tensor([2, 0, 3]).int(), history.clone(), history.clone()
    ops.causal_conv_fold(inplace, slots, recorded, counts)
    ops.causal_conv_fold(history, slots, recorded, counts, targets)
    assert torch.equal(history[[1, 2, 3]], inplace[[4, 0, 3]])
    assert torch.equal(history[[0, 4]], before[[0, 4]])
