"""The gated delta rule: step, chunk, verify and fold against the plain recurrence in fp64."""

from __future__ import annotations

import pytest
import torch

NK, NV, DK, DV = 2, 6, 128, 64
CHANNELS = 2 * NK * DK + NV * DV
LENGTHS = [1, 2, 63, 64, 65, 128, 150]


def recurrence(qkv, decay, beta, state):
    """Outputs and last state, one token and one head at a time, in fp64."""
    state, outputs = state.double().clone(), []
    for row, g, b in zip(qkv.double(), decay.double(), beta.double(), strict=True):
        q, k = row[: NK * DK].view(NK, DK), row[NK * DK : 2 * NK * DK].view(NK, DK)
        v = row[2 * NK * DK :].view(NV, DV)
        q = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt() * DK**-0.5
        k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        out = torch.empty(NV, DV, dtype=torch.float64)
        for head in range(NV):
            key, query = k[head // (NV // NK)], q[head // (NV // NK)]
            state[head] *= g[head].exp()
            update = b[head] * (v[head] - state[head].T @ key)
            state[head] += torch.outer(key, update)
            out[head] = state[head].T @ query
        outputs.append(out)
    return torch.stack(outputs), state


class Inputs:
    def __init__(self, operands, rows, dtype):
        self.qkv = operands.normal(rows, CHANNELS, dtype=dtype)
        self.decay, self.beta = (gate.to(dtype) for gate in operands.gates(rows, NV))

    def __getitem__(self, rows):
        return self.qkv[rows], self.decay[rows], self.beta[rows]


@pytest.fixture
def state(operands):
    return operands.normal(5, NV, DK, DV) * 0.3


def test_gates(ops, operands):
    fused = operands.normal(3, 40) * 8
    fused[0, 0], fused[1, 1] = 90.0, -90.0
    a, b = fused[:, :NV], fused[:, NV : 2 * NV]
    rate, bias = operands.normal(NV).exp(), operands.normal(NV)
    decay, beta = ops.gdn_gates(a, b, rate, bias)
    x = a.double() + bias.double()
    expected = -rate.double() * (x.clamp_min(0) + (-x.abs()).exp().log1p())
    torch.testing.assert_close(decay.double(), expected, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(beta.double(), 1 / (1 + (-b.double()).exp()), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 3e-6), (torch.float64, 1e-13)])
def test_steps_are_the_recurrence(ops, operands, state, dtype, atol):
    state = state.to(dtype)
    slots, before = torch.tensor([3, 0]), state.clone()
    inputs = Inputs(operands, 2 * 9, dtype)
    outputs = [
        ops.gdn_step(*inputs[2 * row : 2 * row + 2], state, slots, slots, NK) for row in range(9)
    ]
    for sequence, slot in enumerate(slots.tolist()):
        expected, last = recurrence(*inputs[sequence::2], before[slot])
        result = torch.stack([out[sequence] for out in outputs])
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=atol)
        torch.testing.assert_close(state[slot].double(), last, rtol=0, atol=3 * atol)
    assert torch.equal(state[[1, 2, 4]], before[[1, 2, 4]])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_chunks_are_the_recurrence(ops, operands, state, length, dtype, atol):
    state = state.to(dtype)
    before, inputs = state.clone(), Inputs(operands, length, dtype)
    result = ops.gdn_chunk(*inputs[:], state, torch.tensor([2]), NK)
    expected, last = recurrence(*inputs[:], before[2])
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=atol)
    torch.testing.assert_close(state[2].double(), last, rtol=0, atol=3 * atol)
    assert torch.equal(state[[0, 1, 3, 4]], before[[0, 1, 3, 4]])


def test_chunk_survives_extreme_decay(ops, operands, state):
    inputs = Inputs(operands, 100, torch.float32)
    inputs.decay *= 60
    before = state.clone()
    result = ops.gdn_chunk(*inputs[:], state, torch.tensor([0]), NK)
    expected, last = recurrence(*inputs[:], before[0])
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(state[0].double(), last, rtol=0, atol=1e-5)


@pytest.mark.parametrize("splits", [[150], [64, 86], [1, 63, 64, 22], [100, 50]])
def test_chunk_splits_agree(ops, operands, state, splits):
    state = state.double()
    inputs, slot = Inputs(operands, 150, torch.float64), torch.tensor([1])
    expected, last = recurrence(*inputs[:], state[1])
    parts = zip(*(column.split(splits) for column in inputs[:]), strict=True)
    result = torch.cat([ops.gdn_chunk(*part, state, slot, NK) for part in parts])
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(state[1], last, rtol=0, atol=1e-12)


def test_a_step_into_another_slot_leaves_its_source(ops, operands, state):
    inputs, kept, inplace = Inputs(operands, 2, torch.float32), state.clone(), state.clone()
    slots, targets = torch.tensor([3, 0]), torch.tensor([1, 0])
    result = ops.gdn_step(*inputs[:], state, slots, targets, NK)
    assert torch.equal(result, ops.gdn_step(*inputs[:], inplace, slots, slots, NK))
    assert torch.equal(state[[1, 0]], inplace[[3, 0]])
    assert torch.equal(state[[2, 3, 4]], kept[[2, 3, 4]])


def test_verify_and_fold_are_steps(ops, operands, state, records):
    width, slots, counts = 4, torch.tensor([4, 1, 2, 0]), [0, 1, 3, 4]
    inputs = Inputs(operands, 4 * width, torch.float32)
    kept, stepped = state.clone(), state.clone()
    recorded = records(5, 6, nk=NK, nv=NV, dk=DK, dv=DV)
    result = ops.gdn_verify(*inputs[:], state, slots, NK, recorded)
    assert torch.equal(state, kept)
    for plane in (recorded.keys, recorded.updates, recorded.keep):
        assert plane[:, width:].isnan().all()
        assert plane[3].isnan().all()
    for sequence, slot in enumerate(slots.tolist()):
        for row in range(width):
            place = sequence * width + row
            single = inputs[place : place + 1]
            step = ops.gdn_step(*single, stepped, *[torch.tensor([slot])] * 2, NK)
            assert torch.equal(step[0], result[place])
            if row + 1 == counts[sequence]:
                kept[slot] = stepped[slot]
        for plane in (recorded.keys, recorded.updates, recorded.keep):
            plane[slot, counts[sequence] :] = float("nan")
    ops.gdn_fold(state, slots, recorded, torch.tensor(counts, dtype=torch.int32))
    assert torch.equal(state, kept)


def test_a_fold_into_another_slot_leaves_its_source(ops, operands, state, records):
    slots, targets = torch.tensor([4, 0, 3]), torch.tensor([1, 2, 3])
    inputs = Inputs(operands, 9, torch.float32)
    recorded = records(5, 4, nk=NK, nv=NV, dk=DK, dv=DV)
    ops.gdn_verify(*inputs[:], state, slots, NK, recorded)
    counts, before, inplace = torch.tensor([2, 0, 3]).int(), state.clone(), state.clone()
    ops.gdn_fold(inplace, slots, recorded, counts)
    ops.gdn_fold(state, slots, recorded, counts, targets)
    assert torch.equal(state[[1, 2, 3]], inplace[[4, 0, 3]])
    assert torch.equal(state[[0, 4]], before[[0, 4]])
